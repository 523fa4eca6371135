package io.kvmessenger.testkit.sim.check;

import java.util.function.LongUnaryOperator;

/** The same seed twice gives the same trace: nothing depends on identity hashes, wall clocks or stray threads. */
public final class DeterminismChecker {
    private DeterminismChecker() {}

    /** @param traceHash runs a seed and returns the hash over all its events */
    public static void check(long seed, LongUnaryOperator traceHash) {
        long first = traceHash.applyAsLong(seed);
        long second = traceHash.applyAsLong(seed);
        if (first != second) {
            throw new Violation(
                    "Determinism",
                    "seed " + seed + " gave trace " + Long.toHexString(first) + " and then "
                            + Long.toHexString(second));
        }
    }
}
