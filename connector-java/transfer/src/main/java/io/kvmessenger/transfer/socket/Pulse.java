package io.kvmessenger.transfer.socket;

/**
 * When to give a heartbeat on an idle socket, and whether the peer has given none for too long. A socket's own traffic
 * is the only proof that its connection still exists: a firewall forgets each connection by itself.
 *
 * <p>Worker only; time is a parameter. It sends nothing, and does not decide what the end of a socket means. A pause of
 * its own worker is not held against the peer, whose heartbeats may wait unread.
 */
public final class Pulse {
    /** Signs that a peer gives within the limit. */
    public static final int BEATS = 5;

    private final long limitNs;
    private final long intervalNs;
    private long lookedNs;
    private long givenNs;
    private long silenceNs;

    /** @param limitNs how long the peer may be silent */
    public Pulse(long limitNs, long nowNs) {
        this.limitNs = limitNs;
        intervalNs = Math.max(1, limitNs / BEATS);
        lookedNs = nowNs;
        givenNs = nowNs;
    }

    /** Time passes; to be called in each duty cycle. */
    public void look(long nowNs) {
        silenceNs += Math.min(nowNs - lookedNs, intervalNs);
        lookedNs = nowNs;
    }

    public boolean isDue(long nowNs) {
        return nowNs - givenNs >= intervalNs;
    }

    public void onGiven(long nowNs) {
        givenNs = nowNs;
    }

    /** Restarts the measurement of silence: called for anything received, and at the start. */
    public void onHeard() {
        silenceNs = 0;
    }

    public boolean isSilent() {
        return silenceNs > limitNs;
    }
}
