package io.kvmessenger.messenger.session;

/**
 * The earliest of the moments at which something is due, so that a duty cycle before it looks at nothing. It may be too early,
 * never too late. One thread.
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

    /** Whether the moment has come; it is forgotten then, and all moments that are left have to be added. */
    boolean take(long nowNs) {
        boolean come = any && nowNs - atNs >= 0;
        any &= !come;
        return come;
    }

    /** How long until then; at most so long. */
    long waitNs(long nowNs, long longestNs) {
        return any ? Math.clamp(atNs - nowNs, 0, longestNs) : longestNs;
    }
}
