package io.kvmessenger.messenger.port;

/** How many of the pages that arrive a decoder compares with what their prefiller's pages hold. */
public enum ChecksumMode {
    /** None. */
    OFF(0),
    /** One page in sixteen of every write; which ones, the prefiller draws. */
    SAMPLED(16),
    /** All. */
    FULL(1);

    private final int interval;

    ChecksumMode(int interval) {
        this.interval = interval;
    }

    /** Every n-th page of a write is compared; 0 = none. */
    public int interval() {
        return interval;
    }
}
