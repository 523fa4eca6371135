package io.kvmessenger.benchmarks;

import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * Cost of a paged write from submit to completion, for both engines together, once they are warm. {@link WriteCost}
 * runs it for its allocation.
 */
@State(Scope.Benchmark)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
@Fork(1)
@Warmup(iterations = 15, time = 1)
@Measurement(iterations = 10, time = 1)
public class WriteBenchmark {
    static final int WRITES = 1000;

    @Param({"shm", "tcp"})
    public String transport;

    private WritePair pair;

    @Setup
    public void open() {
        pair = new WritePair(transport);
    }

    @TearDown
    public void close() {
        pair.close();
    }

    @Benchmark
    @OperationsPerInvocation(WRITES)
    public void write() {
        pair.write(WRITES);
    }
}
