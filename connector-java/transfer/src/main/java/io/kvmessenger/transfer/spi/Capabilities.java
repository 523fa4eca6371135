package io.kvmessenger.transfer.spi;

/**
 * What the paths of one domain can do. A value.
 *
 * @param writeMaxBytes longest page that they can write
 * @param readsGathered whether they accept {@link WriteBatch#isGathered gathered} batches, so that memory which the
 *     domain cannot read is gathered for it
 * @param repairLimitNs how long a peer may be without any of its paths, which may come back, before another domain is
 *     tried
 * @param silenceLimitNs how long a path may report nothing about its posts and move none of their bytes before it is
 *     given up; 0 = it detects each loss itself
 */
public record Capabilities(long writeMaxBytes, boolean readsGathered, long repairLimitNs, long silenceLimitNs) {
    /** Pages of any length, from memory that the domain reads itself; each loss is detected, and final. */
    public static final Capabilities PLAIN = new Capabilities(Long.MAX_VALUE, false, 0, 0);

    /** The same, also from memory that is gathered for the domain. */
    public static final Capabilities GATHERING = PLAIN.gathering(Long.MAX_VALUE);

    /** Gathered memory too, and pages up to this length. */
    public Capabilities gathering(long pageMaxBytes) {
        return new Capabilities(pageMaxBytes, true, repairLimitNs, silenceLimitNs);
    }
}
