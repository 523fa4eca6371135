package io.kvmessenger.benchmarks;

import io.kvmessenger.benchmarks.ModelShape.MemoryOrder;
import io.kvmessenger.kvlayout.LayoutPlanner;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import org.openjdk.jmh.profile.GCProfiler;
import org.openjdk.jmh.results.RunResult;
import org.openjdk.jmh.runner.Runner;
import org.openjdk.jmh.runner.RunnerException;
import org.openjdk.jmh.runner.options.OptionsBuilder;

/** Runs {@link PlannerBenchmark} with JMH's allocation profiler, and prints one JSON line for each case. */
public final class PlannerCost {
    /** 400 Gb/s, as of one NIC. */
    private static final double LINK_BYTES_PER_NS = 50.0;

    private record Score(double ns, double allocatedBytes) {}

    private PlannerCost() {}

    public static void main(String[] arguments) throws RunnerException {
        Map<PlanCase, Map<String, Score>> scores = new TreeMap<>();
        OptionsBuilder options = new OptionsBuilder();
        options.include(PlannerBenchmark.class.getName()).addProfiler(GCProfiler.class);
        for (RunResult result : new Runner(options.build()).run()) {
            String benchmark = result.getParams().getBenchmark();
            scores.computeIfAbsent(PlanCase.valueOf(result.getParams().getParam("planCase")), c -> new TreeMap<>())
                    .put(benchmark.substring(benchmark.lastIndexOf('.') + 1), score(result));
        }
        scores.forEach((planCase, byBenchmark) -> System.out.println(line(planCase, byBenchmark)));
    }

    private static Score score(RunResult result) {
        return new Score(result.getPrimaryResult().getScore(), Profiled.allocatedBytes(result));
    }

    private static String line(PlanCase planCase, Map<String, Score> scores) {
        long bytes = PlanCounts.bytes(
                LayoutPlanner.plan(
                        planCase.source(MemoryOrder.LAYERS_OUTERMOST), planCase.target(MemoryOrder.LAYERS_OUTERMOST)),
                PlannerBenchmark.TOKEN_COUNT);
        double transferNs = bytes / LINK_BYTES_PER_NS;
        Score cut = scores.get("cutIntoWrites");
        Score cutTwice = scores.get("cutTwiceIntoWrites");
        Score expected = scores.get("expectedPieces");
        return String.format(
                Locale.ROOT,
                "{\"case\": \"%s\", \"tokens\": %d, \"bytes\": %d, \"transferNsAt400Gbps\": %.0f,"
                        + " \"cutNs\": %.0f, \"expectedNs\": %.0f, \"planningShare\": %.5f, \"planOnceNs\": %.0f,"
                        + " \"cutAllocatedBytes\": %.0f, \"cutTwiceAllocatedBytes\": %.0f}",
                planCase,
                PlannerBenchmark.TOKEN_COUNT,
                bytes,
                transferNs,
                cut.ns,
                expected.ns,
                Math.max(cut.ns, expected.ns) / transferNs,
                scores.get("planOnce").ns,
                cut.allocatedBytes,
                cutTwice.allocatedBytes);
    }
}
