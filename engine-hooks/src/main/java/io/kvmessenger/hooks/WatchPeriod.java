package io.kvmessenger.hooks;

/**
 * How long the messenger's thread waits between two looks at the layer counter: a share of the time in which nothing has
 * happened. So a layer is noticed late by a share of what it took to compute, and a look costs the same share of that
 * time whether a layer takes 0.1 ms or 20; each look interrupts the forward pass where both have one core.
 *
 * <p>The end of a forward pass that the engine's thread tells ends a wait, as does all else that comes by the inbox. For one
 * thread.
 */
public final class WatchPeriod {
    /** Of layers that take less than eight of these; a thread cannot be woken much more often. */
    static final long MIN_NS = 50_000;
    /** Below what a transfer engine takes for a wait in which it may spin. */
    static final long MAX_NS = 900_000;

    static final int QUIET_SHARE = 8;

    private long lastWorkNs;

    public WatchPeriod(long nowNs) {
        lastWorkNs = nowNs;
    }

    /** A layer was noticed, bytes moved, or a command came: more may follow at once. */
    public void onWork(long nowNs) {
        lastWorkNs = nowNs;
    }

    /** From now until the next look. */
    public long periodNs(long nowNs) {
        return Math.clamp((nowNs - lastWorkNs) / QUIET_SHARE, MIN_NS, MAX_NS);
    }
}
