package io.kvmessenger.transfer.libfabric;

/**
 * Whether what a path was given arrives: a provider may lose what it told as sent, or never get on with it, and say nothing. The
 * target is asked how many writes have arrived whenever none begins or completes; answers that stay short of what was written
 * show a loss.
 *
 * <p>A provider whose connection has gone may also refuse every write for now, for ever: with none under way that has a limit too.
 *
 * <p>Worker only. A target that does not answer, as one that is stopped, shows nothing. While writes go on without a pause a loss is
 * not seen.
 */
final class DeliveryWatch {
    /** From one answer to the next question; also from the last write that began or completed. */
    static final long ASK_NS = 50_000_000L;

    private final long limitNs;
    private long writtenCount;
    private long arrivedCount;
    /** Of the answers since which nothing has changed. */
    private long answeredCount = -1;

    private long unchangedSinceNs;
    private long nextAskNs;
    private boolean hasMoved;
    private boolean asked;
    private boolean refused;
    private long refusedSinceNs;

    /** @param limitNs how long answers may stay short */
    DeliveryWatch(long limitNs) {
        this.limitNs = limitNs;
    }

    /** A write was given to the provider. */
    void onWritten() {
        writtenCount++;
        hasMoved = true;
    }

    /** A write has completed. */
    void onCompleted() {
        hasMoved = true;
    }

    /** Whether the target is to be asked now. */
    boolean shallAsk(long nowNs) {
        if (hasMoved) {
            hasMoved = false;
            answeredCount = -1;
            nextAskNs = nowNs + ASK_NS;
        }
        return !asked && arrivedCount < writtenCount && nowNs - nextAskNs >= 0;
    }

    void onAsked() {
        asked = true;
    }

    /** Returns whether the answer can be true. */
    boolean onAnswer(long count, long nowNs) {
        if (!asked || count < arrivedCount || count > writtenCount) {
            return false;
        }
        asked = false;
        nextAskNs = nowNs + ASK_NS;
        arrivedCount = count;
        if (count != answeredCount) {
            answeredCount = count;
            unchangedSinceNs = nowNs;
        }
        return true;
    }

    /** Writes that do not arrive any more; 0 while that is not known. */
    long lostCount(long nowNs) {
        boolean isLoss = answeredCount >= 0 && answeredCount < writtenCount && nowNs - unchangedSinceNs >= limitNs;
        return isLoss && !asked && !hasMoved ? writtenCount - answeredCount : 0;
    }

    /** Whether the provider, with no write under way, has refused all for too long. */
    boolean isRefusedForGood(boolean refusedNow, long nowNs) {
        if (refusedNow && !refused) {
            refusedSinceNs = nowNs;
        }
        refused = refusedNow;
        return refused && nowNs - refusedSinceNs >= limitNs;
    }
}
