package io.kvmessenger.benchmarks;

import io.kvmessenger.benchmarks.ModelShape.MemoryOrder;
import io.kvmessenger.kvlayout.ExpectedWrites;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayoutPlanner;
import io.kvmessenger.kvlayout.TransferPlan;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.Warmup;

/**
 * Cost of planning: the plan once per pair of peers, the rest once per request. No two pages are adjacent, so that
 * every page is processed and none is merged. {@link PlannerCost} runs it.
 */
@State(Scope.Benchmark)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
@Fork(1)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
public class PlannerBenchmark {
    static final int TOKEN_COUNT = PlanCounts.TOKEN_COUNT;

    @Param
    public PlanCase planCase;

    private KvGeometry source;
    private KvGeometry target;
    private RequestWrites writes;
    private int[] pages;
    private int[] pagesOfTwice;

    @Setup
    public void describe() {
        source = planCase.source(MemoryOrder.LAYERS_OUTERMOST);
        target = planCase.target(MemoryOrder.LAYERS_OUTERMOST);
        writes = new RequestWrites(source, target, LayoutPlanner.plan(source, target));
        pages = PlanCounts.pages(planCase, TOKEN_COUNT, 2);
        pagesOfTwice = PlanCounts.pages(planCase, 2 * TOKEN_COUNT, 2);
    }

    @Benchmark
    public TransferPlan planOnce() {
        return LayoutPlanner.plan(source, target);
    }

    /** The decoder's part, for all its ranks. */
    @Benchmark
    public long expectedPieces() {
        long pieces = 0;
        for (int rank = 0; rank < target.ranks().size(); rank++) {
            pieces += ExpectedWrites.pieceCount(source, target, rank, 0, TOKEN_COUNT);
        }
        return pieces;
    }

    /** The prefiller's part, for all its ranks. */
    @Benchmark
    public long cutIntoWrites() {
        return writes.count(pages, pages, TOKEN_COUNT);
    }

    /** The same for twice the tokens: the difference in allocation is the allocation per page. */
    @Benchmark
    public long cutTwiceIntoWrites() {
        return writes.count(pagesOfTwice, pagesOfTwice, 2 * TOKEN_COUNT);
    }
}
