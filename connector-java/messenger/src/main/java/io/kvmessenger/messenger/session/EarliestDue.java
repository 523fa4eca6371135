package io.kvmessenger.messenger.session;

/**
 * The earliest of several due times, so that a duty cycle before it visits nothing. May be too early, never too late.
 * Single-threaded.
 */
final class EarliestDue {
    private boolean any;
    private long atNs;

    void add(long dueNs) {
        if (!any || dueNs - atNs < 0) {
            any = true;
            atNs = dueNs;
        }
    }

    /** Whether a due time has passed. If so, all are removed, and the caller has to add the remaining ones again. */
    boolean take(long nowNs) {
        boolean come = any && nowNs - atNs >= 0;
        any &= !come;
        return come;
    }

    /** Time until the earliest due time, at most {@code longestNs}. */
    long waitNs(long nowNs, long longestNs) {
        return any ? Math.clamp(atNs - nowNs, 0, longestNs) : longestNs;
    }
}
