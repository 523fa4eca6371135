package io.kvmessenger.messenger.session;

import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;

/**
 * What has to be looked at when, each with one deadline; those with the same come in the order in which they were set. A
 * look costs the same however many wait. Not thread-safe.
 */
public final class Deadlines<T> {
    private final Map<T, Due<T>> dueOf = new HashMap<>();
    private final TreeSet<Due<T>> inOrder = new TreeSet<>(Due::compare);
    private long lastOrder;

    private record Due<T>(T subject, long atNs, long order) {
        static int compare(Due<?> one, Due<?> other) {
            long apartNs = one.atNs - other.atNs; // the clock may begin anywhere, and wrap
            return apartNs == 0 ? Long.compare(one.order, other.order) : Long.signum(apartNs);
        }
    }

    /** In the place of its earlier deadline, if it has one. */
    public void set(T subject, long atNs) {
        Due<T> due = new Due<>(subject, atNs, ++lastOrder);
        Due<T> earlier = dueOf.put(subject, due);
        if (earlier != null) {
            inOrder.remove(earlier);
        }
        inOrder.add(due);
    }

    public void remove(T subject) {
        Due<T> due = dueOf.remove(subject);
        if (due != null) {
            inOrder.remove(due);
        }
    }

    /** Takes out the one whose deadline is over for the longest time; null when there is none. */
    public T takeOver(long nowNs) {
        if (inOrder.isEmpty() || nowNs - inOrder.first().atNs < 0) {
            return null;
        }
        T subject = inOrder.pollFirst().subject;
        dueOf.remove(subject);
        return subject;
    }

    /** The earliest deadline, or {@code latestNs} when none is earlier. */
    public long earliestNs(long latestNs) {
        return inOrder.isEmpty() ? latestNs : latestNs + Math.min(0, inOrder.first().atNs - latestNs);
    }
}
