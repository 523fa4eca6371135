package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.check.Violation;
import java.util.PriorityQueue;

/**
 * The world's time and its due actions. Time advances only from one due action to the next; if it stands still for
 * {@link #ACTIONS_AT_ONCE_MAX} actions, the world is spinning and the run ends.
 */
final class SimulatedClock {
    private record Entry(long dueNs, long sequence, Runnable action) implements Comparable<Entry> {
        @Override
        public int compareTo(Entry other) {
            return dueNs != other.dueNs ? Long.compare(dueNs, other.dueNs) : Long.compare(sequence, other.sequence);
        }
    }

    /** Far above what the busiest moments of healthy runs need. */
    static final int ACTIONS_AT_ONCE_MAX = 100_000;

    private final PriorityQueue<Entry> agenda = new PriorityQueue<>();
    private long nowNs;
    private long nextSequence;
    private int actionsAtOnce;

    long nowNs() {
        return nowNs;
    }

    void at(long dueNs, Runnable action) {
        agenda.add(new Entry(Math.max(dueNs, nowNs), nextSequence++, action));
    }

    void after(long delayNs, Runnable action) {
        at(nowNs + delayNs, action);
    }

    /** Runs the next due action; false when none is due before {@code untilNs}, which then becomes the time. */
    boolean step(long untilNs) {
        Entry next = agenda.peek();
        if (next == null || next.dueNs > untilNs) {
            nowNs = untilNs;
            return false;
        }
        agenda.remove();
        actionsAtOnce = next.dueNs == nowNs ? actionsAtOnce + 1 : 1;
        if (actionsAtOnce > ACTIONS_AT_ONCE_MAX) {
            throw new Violation("Livelock", ACTIONS_AT_ONCE_MAX + " actions and no time has passed");
        }
        nowNs = next.dueNs;
        next.action.run();
        return true;
    }
}
