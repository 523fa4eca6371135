package io.kvmessenger.transfer;

/**
 * How much the writes of a window matter to what waits for them: where writes of two classes want one link, the more
 * urgent go first, and each other class keeps {@link TransferOptions#BULK_SHARE} of the link. In order of urgency.
 */
public enum TrafficClass {
    /** A request waits for it: the hand-over of its KV. */
    URGENT(0),
    /** A request may wait for it, or does better without it: a prefix that could be computed as well. */
    NORMAL(1),
    /** No request waits for it: weights, what a store keeps. */
    BULK(2);

    /** How many there are. */
    public static final int COUNT = values().length;

    private final int rank;

    TrafficClass(int rank) {
        this.rank = rank;
    }

    /** 0 for the most urgent, below {@link #COUNT}: its index where there is one of each. */
    public int rank() {
        return rank;
    }
}
