package io.kvmessenger.testkit.sim;

import java.util.SplittableRandom;

/**
 * One thread of a simulated process: runs a duty cycle some time after it was woken, not while the process is
 * suspended, and never after its death. A process has several, with independent delays.
 */
final class SimulatedThread {
    private final SimulatedClock clock;
    private final SplittableRandom random;
    private final SimulatedNode node;
    private final Runnable dutyCycle;
    private long nextTurnNs = Long.MAX_VALUE;
    private long turnTicket;

    SimulatedThread(SimulatedClock clock, SplittableRandom random, SimulatedNode node, Runnable dutyCycle) {
        this.clock = clock;
        this.random = random;
        this.node = node;
        this.dutyCycle = dutyCycle;
    }

    /** Schedules a duty cycle soon. */
    void wake() {
        long latencyNs = random.nextLong(20 * Scenario.MICRO);
        if (random.nextDouble() < node.slowness() * 0.05) {
            latencyNs += random.nextLong(5 * Scenario.MILLI);
        }
        turnAt(clock.nowNs() + latencyNs);
    }

    /** Schedules a duty cycle at that time or earlier. */
    void turnAt(long dueNs) {
        long atNs = Math.max(dueNs, node.pausedUntilNs());
        if (node.alive() && atNs < nextTurnNs) {
            nextTurnNs = atNs;
            long ticket = ++turnTicket;
            clock.at(atNs, () -> {
                if (ticket == turnTicket) {
                    nextTurnNs = Long.MAX_VALUE;
                    doWork();
                }
            });
        }
    }

    private void doWork() {
        if (!node.alive()) {
            return;
        }
        if (node.paused()) {
            turnAt(node.pausedUntilNs());
        } else {
            dutyCycle.run();
        }
    }
}
