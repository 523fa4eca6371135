package io.kvmessenger.transfer;

import java.util.EnumMap;
import java.util.Map;
import java.util.function.ToLongFunction;

/** A snapshot of one engine's counters. Immutable. */
public final class TransferCounters {
    /** Nothing was counted. */
    public static final TransferCounters NONE = new TransferCounters(counter -> 0);

    private final Map<TransferCounter, Long> values = new EnumMap<>(TransferCounter.class);

    /** Reads as the function says. */
    public TransferCounters(ToLongFunction<TransferCounter> read) {
        for (TransferCounter counter : TransferCounter.values()) {
            values.put(counter, read.applyAsLong(counter));
        }
    }

    /** Since the engine was opened. */
    public long of(TransferCounter counter) {
        return values.get(counter);
    }

    /** What is open now, as a count of things. */
    public int windowsOpen() {
        return Math.toIntExact(of(TransferCounter.WINDOWS_OPEN));
    }

    /** What is submitted and has not ended, as a count of things. */
    public int requestsInFlight() {
        return Math.toIntExact(of(TransferCounter.REQUESTS_IN_FLIGHT));
    }

    @Override
    public String toString() {
        return values.toString();
    }
}
