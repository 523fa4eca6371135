package io.kvmessenger.transfer;

import java.util.Collection;
import java.util.EnumMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.ToLongBiFunction;
import java.util.function.ToLongFunction;

/** A snapshot of one engine's counters. Immutable. */
public final class TransferCounters {
    /** Nothing was counted. */
    public static final TransferCounters NONE = new TransferCounters(counter -> 0);

    private final Map<TransferCounter, Long> values = new EnumMap<>(TransferCounter.class);
    private final Map<String, Map<TransferCounter, Long>> byTransport = new LinkedHashMap<>();

    /** Reads as the function says. */
    public TransferCounters(ToLongFunction<TransferCounter> read) {
        this(read, List.of(), (transport, counter) -> 0);
    }

    /** @param readOwn what a transport has of a counter */
    public TransferCounters(
            ToLongFunction<TransferCounter> read,
            Collection<String> transports,
            ToLongBiFunction<String, TransferCounter> readOwn) {
        for (TransferCounter counter : TransferCounter.values()) {
            values.put(counter, read.applyAsLong(counter));
        }
        for (String transport : transports) {
            Map<TransferCounter, Long> own = new EnumMap<>(TransferCounter.class);
            for (TransferCounter counter : TransferCounter.values()) {
                own.put(counter, readOwn.applyAsLong(transport, counter));
            }
            byTransport.put(transport, own);
        }
    }

    /** Since the engine was opened. */
    public long of(TransferCounter counter) {
        return values.get(counter);
    }

    /** The transports that are open, in the order of preference. */
    public Set<String> transports() {
        return byTransport.keySet();
    }

    /** What the transport has of a counter; 0 of one that is counted before a transport is chosen. */
    public long of(String transport, TransferCounter counter) {
        return byTransport.get(transport).get(counter);
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
