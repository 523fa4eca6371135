package io.kvmessenger.benchmarks;

import org.openjdk.jmh.results.RunResult;

/** Reads the results of JMH's allocation profiler. */
final class Profiled {
    private Profiled() {}

    private static final double MEDIAN = 50;

    /** Bytes per operation, the median of the iterations, since some include JMH's own work. */
    @SuppressWarnings("rawtypes") // JMH gives its results so
    static double allocatedBytes(RunResult result) {
        return result.getSecondaryResults().entrySet().stream()
                .filter(entry -> entry.getKey().endsWith("gc.alloc.rate.norm"))
                .mapToDouble(entry -> entry.getValue().getStatistics().getPercentile(MEDIAN))
                .findFirst()
                .orElseThrow();
    }
}
