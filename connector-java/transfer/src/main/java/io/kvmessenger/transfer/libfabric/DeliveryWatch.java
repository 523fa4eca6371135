package io.kvmessenger.transfer.libfabric;

/**
 * Whether what a path was given arrives: a provider may lose what it told as sent, or never get on with it, and say nothing. The
 * target is asked how many writes have arrived whenever none begins or completes; many answers that stay short of what was written
 * show a loss. A provider whose connection has gone may also refuse every write for now, for ever: with none under way that has a limit
 * too.
 *
 * <p>Worker only. Limits are counted in looks and not by the clock alone: a process that was stopped has not waited. A target that does
 * not answer, as one that is stopped, shows nothing. While writes go on without a pause a loss is not seen.
 */
final class DeliveryWatch {
    /** From one answer to the next question, from the last write that began or completed to it, and from look to look. */
    static final long ASK_NS = 50_000_000L;

    private final long looksMax;
    private long writtenCount;
    private long arrivedCount;
    /** Of the last answer since which no write has begun or completed; -1 for none. */
    private long answeredCount = -1;

    private long unchangedAnswers;
    private long nextAskNs;
    private boolean hasMoved;
    private boolean asked;
    private long refusedLooks;
    private long lastLookNs;

    /** @param limitNs how long answers may stay short, and writes be refused, at least */
    DeliveryWatch(long limitNs) {
        looksMax = Math.max(1, limitNs / ASK_NS);
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
        unchangedAnswers = count == answeredCount ? unchangedAnswers + 1 : 0;
        answeredCount = count;
        return true;
    }

    /** Writes that do not arrive any more; 0 while that is not known. */
    long lostCount() {
        boolean isLoss = answeredCount >= 0 && answeredCount < writtenCount && unchangedAnswers >= looksMax;
        return isLoss && !hasMoved ? writtenCount - answeredCount : 0;
    }

    /** Whether the provider, with no write under way, has refused all for too long. */
    boolean isRefusedForGood(boolean refusedNow, long nowNs) {
        if (!refusedNow) {
            refusedLooks = 0;
        } else if (refusedLooks == 0 || nowNs - lastLookNs >= ASK_NS) {
            refusedLooks++;
            lastLookNs = nowNs;
        }
        return refusedLooks > looksMax;
    }
}
