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
    public static final TransferCounters NONE = new TransferCounters(counter -> 0);

    private final Map<TransferCounter, Long> values = new EnumMap<>(TransferCounter.class);
    private final Map<String, Map<TransferCounter, Long>> byTransport = new LinkedHashMap<>();

    /** Takes each counter's value from {@code read}. */
    public TransferCounters(ToLongFunction<TransferCounter> read) {
        this(read, List.of(), (transport, counter) -> 0);
    }

    /** @param readOwn returns a transport's share of a counter */
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

    /** The counter's value for the whole engine. */
    public long of(TransferCounter counter) {
        return values.get(counter);
    }

    /** The open transports, in order of preference. */
    public Set<String> transports() {
        return byTransport.keySet();
    }

    /** The transport's share of a counter; 0 for counters that are counted before a transport is chosen. */
    public long of(String transport, TransferCounter counter) {
        return byTransport.get(transport).get(counter);
    }

    /** Number of windows open now. */
    public int windowsOpen() {
        return Math.toIntExact(of(TransferCounter.WINDOWS_OPEN));
    }

    /** Number of requests submitted and not ended. */
    public int requestsInFlight() {
        return Math.toIntExact(of(TransferCounter.REQUESTS_IN_FLIGHT));
    }

    @Override
    public String toString() {
        return values.toString();
    }
}
