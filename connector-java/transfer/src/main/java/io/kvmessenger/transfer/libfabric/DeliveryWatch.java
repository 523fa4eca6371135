package io.kvmessenger.transfer.libfabric;

/**
 * Detects writes that never arrive: a provider may lose what it reported as sent, or stall without an error. The target
 * is asked how many writes have arrived whenever none begins or completes; repeated answers below the number written
 * show a loss. A provider whose connection is gone may also refuse every write "for now" forever, so refusals with none
 * in flight have a limit too.
 *
 * <p>Worker only. Limits are counted in looks and not by the clock alone, since a process that was suspended has not
 * waited. A target that does not answer, such as a suspended one, shows nothing. A loss is not detected while writes go
 * on without a pause.
 */
final class DeliveryWatch {
    /** Interval between an answer or a write's begin or completion and the next question, and between looks. */
    static final long ASK_NS = 50_000_000L;

    private final long looksMax;
    private long writtenCount;
    private long arrivedCount;
    /** The last answer since which no write has begun or completed; -1 for none. */
    private long answeredCount = -1;

    private long unchangedAnswers;
    private long nextAskNs;
    private boolean hasMoved;
    private boolean asked;
    private long refusedLooks;
    private long lastLookNs;

    /** @param limitNs minimum time for which answers stay short, or writes are refused, before that counts */
    DeliveryWatch(long limitNs) {
        looksMax = Math.max(1, limitNs / ASK_NS);
    }

    /** A write was given to the provider. */
    void onWritten() {
        writtenCount++;
        hasMoved = true;
    }

    void onCompleted() {
        hasMoved = true;
    }

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

    /** Returns whether the answer is possible. */
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

    /** Number of writes that will not arrive any more; 0 while unknown. */
    long lostCount() {
        boolean isLoss = answeredCount >= 0 && answeredCount < writtenCount && unchangedAnswers >= looksMax;
        return isLoss && !hasMoved ? writtenCount - answeredCount : 0;
    }

    /** Whether the provider, with no write in flight, has refused all writes for too long. */
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
