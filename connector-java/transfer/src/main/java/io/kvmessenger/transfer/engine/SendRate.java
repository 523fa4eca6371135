package io.kvmessenger.transfer.engine;

import java.util.function.LongSupplier;

/**
 * How fast a peer takes queued bytes: a moving average over the time in which the queue was not empty.
 *
 * <p>The worker reports queued and sent bytes; any thread reads the rate. It reads the clock only when a sample is due,
 * allocates nothing and decides nothing: {@link PathRates} selects among networks.
 */
final class SendRate {
    /** Time constant of the moving average. */
    static final long MEMORY_NS = 1_000_000_000L;

    /** Shortest interval between samples while the queue is not empty. */
    static final long SAMPLE_NS = 2_000_000;

    /** Observation time after which the rate counts as known. */
    static final long KNOWN_AFTER_NS = 1_000_000;

    private static final double NS_PER_SECOND = 1e9;

    private final LongSupplier clock;
    private boolean busy;
    private long sampledNs;
    private long sampledBytes;
    private long seenNs;
    private double bytesPerNs;
    private volatile double bytesPerSecond;

    SendRate(LongSupplier clock) {
        this.clock = clock;
    }

    /** Worker, before it posts: starts the measurement if anything is queued. */
    void begin(long queuedBytes, long sentBytes) {
        if (!busy && queuedBytes > 0) {
            busy = true;
            sampledNs = clock.getAsLong();
            sampledBytes = sentBytes;
        }
    }

    /**
     * Worker, after it has posted and processed completions.
     *
     * @param nowNs of the duty cycle: precise enough to tell whether a sample is due
     */
    void look(long queuedBytes, long sentBytes, long nowNs) {
        if (!busy || (queuedBytes > 0 && nowNs - sampledNs < SAMPLE_NS)) {
            return;
        }
        long sampleNs = clock.getAsLong();
        learn(sentBytes - sampledBytes, sampleNs - sampledNs);
        busy = queuedBytes > 0;
        sampledNs = sampleNs;
        sampledBytes = sentBytes;
    }

    private void learn(long sentBytes, long tookNs) {
        if (tookNs <= 0) {
            return;
        }
        bytesPerNs += (double) tookNs / (tookNs + seenNs) * ((double) sentBytes / tookNs - bytesPerNs);
        seenNs = Math.min(MEMORY_NS, seenNs + tookNs);
        if (seenNs >= KNOWN_AFTER_NS) {
            bytesPerSecond = bytesPerNs * NS_PER_SECOND;
        }
    }

    /** Any thread: 0 while unknown. */
    double bytesPerSecond() {
        return bytesPerSecond;
    }
}
