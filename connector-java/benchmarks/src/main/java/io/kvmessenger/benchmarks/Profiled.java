package io.kvmessenger.benchmarks;

import org.openjdk.jmh.results.RunResult;

/** Reads what JMH's profiler of allocation found. */
final class Profiled {
    private Profiled() {}

    private static final double MEDIAN = 50;

    /** For each operation, the median of the iterations: some have JMH's own work in them. */
    @SuppressWarnings("rawtypes") // JMH gives its results so
    static double allocatedBytes(RunResult result) {
        return result.getSecondaryResults().entrySet().stream()
                .filter(entry -> entry.getKey().endsWith("gc.alloc.rate.norm"))
                .mapToDouble(entry -> entry.getValue().getStatistics().getPercentile(MEDIAN))
                .findFirst()
                .orElseThrow();
    }
}
