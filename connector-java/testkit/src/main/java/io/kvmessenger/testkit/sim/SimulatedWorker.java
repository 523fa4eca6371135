package io.kvmessenger.testkit.sim;

import io.kvmessenger.transfer.engine.InvokedEngine;
import io.kvmessenger.transfer.spi.Poller;
import java.util.SplittableRandom;

/**
 * One worker of a process's transfer engine, as a thread besides that of its messenger: it runs the engine's duty cycle
 * when woken, at its own times.
 */
final class SimulatedWorker implements Poller {
    /** Interval for checking time limits, if there are any. */
    private static final long PARK_NS = Scenario.MILLI;

    private final SimulatedNode node;
    private final SimulatedFabric fabric;
    private final SimulatedThread thread;
    private final int index;
    private InvokedEngine engine;

    /** @param index its index among the engine's workers */
    SimulatedWorker(
            SimulatedClock clock, SplittableRandom random, SimulatedNode node, SimulatedFabric fabric, int index) {
        this.index = index;
        this.node = node;
        this.fabric = fabric;
        thread = new SimulatedThread(clock, random, node, this::doWork);
    }

    void start(InvokedEngine engine) {
        this.engine = engine;
    }

    private void doWork() {
        int work = engine.doWork(index);
        fabric.rethrow();
        if (work > 0) {
            wake();
        } else if (fabric.shape().fall().hasLimits()) {
            thread.turnAt(node.worldNs() + PARK_NS);
        }
    }

    @Override
    public long nowNs() {
        return node.nowNs();
    }

    @Override
    public long tick() {
        return node.nowNs();
    }

    /** There are no descriptors: input arrives through the transport. */
    @Override
    public int poll(int timeoutMillis) {
        if (timeoutMillis > 0) {
            throw new AssertionError("only a thread waits, and there is none here");
        }
        return 0;
    }

    @Override
    public void wake() {
        thread.wake();
    }

    @Override
    public void close() {}
}
