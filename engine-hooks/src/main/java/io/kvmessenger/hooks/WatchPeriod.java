package io.kvmessenger.hooks;

/**
 * Interval at which the messenger's thread polls the layer counter: a fixed fraction of the time since something last
 * happened. So the delay until a layer is noticed, and the cost of polling, are that fraction of the layer's duration,
 * whether it takes 0.1 ms or 20. A short interval is not free: each poll interrupts the forward pass if both share a
 * core.
 *
 * <p>The wait also ends with any input, such as the engine's report that a forward pass has ended. For one thread.
 */
public final class WatchPeriod {
    /** Shortest interval: used while layers take less than 8 × 50 µs. A thread cannot be woken much more often. */
    static final long MIN_NS = 50_000;
    /** Longest interval: shorter than the waits in which a transfer engine may spin. */
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

    /** Time from now until the next poll. */
    public long periodNs(long nowNs) {
        return Math.clamp((nowNs - lastWorkNs) / QUIET_SHARE, MIN_NS, MAX_NS);
    }
}
