package io.kvmessenger.messenger.port;

/** Which share of the arriving pages a decoder compares with the checksums of their prefiller. */
public enum ChecksumMode {
    OFF(0),
    /** One page in sixteen of every write, selected by the prefiller. */
    SAMPLED(16),
    FULL(1);

    private final int interval;

    ChecksumMode(int interval) {
        this.interval = interval;
    }

    /** Every n-th page of a write is compared; 0 means none. */
    public int interval() {
        return interval;
    }
}
