package io.kvmessenger.transfer.path;

/** Pauses between a loss and the next attempt, each twice as long as the one before. Worker only. */
public final class Pause {
    private final long minNs;
    private final long maxNs;
    private long nextNs;
    private long endNs;

    public Pause(long minNs, long maxNs) {
        this.minNs = minNs;
        this.maxNs = maxNs;
        nextNs = minNs;
    }

    public void begin(long nowNs) {
        endNs = nowNs + nextNs;
        nextNs = Math.min(2 * nextNs, maxNs);
    }

    public boolean isOver(long nowNs) {
        return nowNs - endNs >= 0;
    }

    /** An attempt has succeeded: the next pause is the shortest. */
    public void onSuccess() {
        nextNs = minNs;
    }
}
