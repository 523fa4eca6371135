package io.kvmessenger.transfer.engine;

import java.util.function.LongSupplier;

/**
 * How fast a peer takes what is queued for it: a moving average over the time in which something was.
 *
 * <p>The worker tells it what is queued and what was sent; any thread reads the rate. It reads the clock only when a sample is due,
 * allocates nothing and decides nothing: {@link PathRates} chooses among networks.
 */
final class SendRate {
    /** Of the moving average. */
    static final long MEMORY_NS = 1_000_000_000L;

    /** Samples are no closer while the queue stays filled. */
    static final long SAMPLE_NS = 2_000_000;

    /** Before a queue was seen filled for so long the rate is unknown. */
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

    /** Worker, before it posts: from now on the queue's time counts, if there is anything in it. */
    void begin(long queuedBytes, long sentBytes) {
        if (!busy && queuedBytes > 0) {
            busy = true;
            sampledNs = clock.getAsLong();
            sampledBytes = sentBytes;
        }
    }

    /**
     * Worker, after it has posted and heard what was sent.
     *
     * @param nowNs of the duty cycle: whether a sample is due needs no better
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

    /** Any thread: 0 while it is unknown. */
    double bytesPerSecond() {
        return bytesPerSecond;
    }
}
