package io.kvmessenger.messenger.session;

import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;

/**
 * Subjects ordered by deadline, one each; equal deadlines keep the order in which they were set. The cost of finding
 * the next one does not depend on the number of subjects. Not thread-safe.
 */
public final class Deadlines<T> {
    private final Map<T, Due<T>> dueOf = new HashMap<>();
    private final TreeSet<Due<T>> inOrder = new TreeSet<>(Due::compare);
    private long lastOrder;

    private record Due<T>(T subject, long atNs, long order) {
        static int compare(Due<?> one, Due<?> other) {
            long apartNs = one.atNs - other.atNs; // the clock's origin is arbitrary, and it may wrap
            return apartNs == 0 ? Long.compare(one.order, other.order) : Long.signum(apartNs);
        }
    }

    /** Sets the subject's deadline, replacing an earlier one. */
    public void set(T subject, long atNs) {
        Due<T> due = new Due<>(subject, atNs, ++lastOrder);
        Due<T> earlier = dueOf.put(subject, due);
        if (earlier != null) {
            inOrder.remove(earlier);
        }
        inOrder.add(due);
    }

    public boolean has(T subject) {
        return dueOf.containsKey(subject);
    }

    public void remove(T subject) {
        Due<T> due = dueOf.remove(subject);
        if (due != null) {
            inOrder.remove(due);
        }
    }

    /** Removes and returns the subject whose deadline passed first; null when none has passed. */
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
