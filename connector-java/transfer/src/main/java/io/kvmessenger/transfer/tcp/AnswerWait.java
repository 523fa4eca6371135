package io.kvmessenger.transfer.tcp;

import io.kvmessenger.transfer.spi.OutboundChannel;

/**
 * How long a target's count for a broken data socket is awaited. A target that is only stopped gets much time, since its
 * machine still acknowledges the control socket on which it was asked. One whose control socket is dead too gets little.
 *
 * <p>Worker only; time is a parameter.
 */
final class AnswerWait {
    /** Time for an answer; for a patient wait, the longest time in which nothing of the control socket is acknowledged. */
    static final long LIMIT_NS = 5_000_000_000L;

    /** Time for an answer from a target that may be stopped: its session limits how long. */
    static final long PATIENT_LIMIT_NS = 120_000_000_000L;

    /** Interval between looks at the control socket, each of which costs a system call. */
    static final long LOOK_NS = 100_000_000L;

    private final long deadlineNs;
    private long lookedNs;
    private long heldBytes = Long.MAX_VALUE;
    private long acknowledgedNs;

    AnswerWait(boolean patient, long nowNs) {
        deadlineNs = nowNs + (patient ? PATIENT_LIMIT_NS : LIMIT_NS);
        lookedNs = nowNs - LOOK_NS;
        acknowledgedNs = nowNs;
    }

    void look(OutboundChannel channel, long nowNs) {
        if (nowNs - lookedNs < LOOK_NS) {
            return;
        }
        lookedNs = nowNs;
        long heldNow = channel.unacknowledgedBytes();
        if (heldNow == 0 || heldNow < heldBytes) {
            acknowledgedNs = nowNs;
        }
        heldBytes = heldNow;
    }

    boolean isOver(long nowNs) {
        return nowNs - deadlineNs > 0 || nowNs - acknowledgedNs > LIMIT_NS;
    }
}
