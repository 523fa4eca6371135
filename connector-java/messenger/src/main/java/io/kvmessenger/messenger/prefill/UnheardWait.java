package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.ProtocolLimits;

/**
 * How long a grant waits for a prompt of which nothing has been heard: the limit, or twice as long as other prompts have
 * come after their grants lately. Requests that queue in front of the prefiller's engine, where nothing announces them,
 * make all of them late; so the wait grows with such a queue instead of failing what is in it.
 *
 * <p>Owned by the messenger's thread.
 */
final class UnheardWait {
    /** How long a late prompt is remembered, as a multiple of the limit. */
    private static final int MEMORY_LIMITS = 4;

    private final long limitNs;
    private final long mostNs;
    /** Largest delay of a prompt behind its grant that is remembered. */
    private long latestNs;
    /** When that prompt came. */
    private long cameNs;

    UnheardWait(ProtocolLimits limits) {
        limitNs = limits.unheardLimitNs();
        mostNs = Math.max(limitNs, limits.grantWaitNs());
    }

    /** Records by how much a prompt came later than its grant. */
    void came(long lateNs, long nowNs) {
        if (lateNs >= latestNs || isOver(nowNs)) {
            latestNs = lateNs;
            cameNs = nowNs;
        }
    }

    long waitNs(long nowNs) {
        return isOver(nowNs) ? limitNs : Math.clamp(2 * latestNs, limitNs, mostNs);
    }

    private boolean isOver(long nowNs) {
        return nowNs - cameNs >= MEMORY_LIMITS * limitNs;
    }
}
