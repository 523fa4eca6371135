package io.kvmessenger.transfer.engine;

/**
 * How fast a link is, as far as is known: the highest rate at which it has moved bytes lately.
 *
 * <p>Time is a parameter; allocates nothing. For one thread.
 */
final class LinkRate {
    /** A link that has not shown more counts as this fast: 100 Mb/s. */
    static final double MIN_BYTES_PER_NS = 0.0125;

    /** Time over which a rate is measured: writes of some MiB end at once. */
    static final long SAMPLE_NS = 200_000_000;

    /** Observed time in which half of a rate that is not reached again is forgotten: links slow down, and get busy. */
    static final long HALF_LIFE_NS = 500_000_000L;

    /** A longer interval was not observed: it says nothing. */
    private static final long SAMPLE_MAX_NS = 2 * SAMPLE_NS;

    private double bytesPerNs = MIN_BYTES_PER_NS;
    private long sampledNs;
    private long sampledBytes;

    LinkRate(long nowNs) {
        sampledNs = nowNs;
    }

    /** @param movedBytes since ever; less than before if what has moved some is gone */
    void sample(long movedBytes, long nowNs) {
        long tookNs = nowNs - sampledNs;
        if (tookNs < SAMPLE_NS) {
            return;
        }
        if (tookNs <= SAMPLE_MAX_NS) {
            double seen = (double) (movedBytes - sampledBytes) / tookNs;
            double kept = bytesPerNs * Math.pow(0.5, (double) tookNs / HALF_LIFE_NS);
            bytesPerNs = Math.max(MIN_BYTES_PER_NS, Math.max(seen, kept));
        }
        sampledNs = nowNs;
        sampledBytes = movedBytes;
    }

    double bytesPerNs() {
        return bytesPerNs;
    }
}
