package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.check.WorldListener;
import io.kvmessenger.transfer.engine.EngineLimits;
import java.util.SplittableRandom;

/**
 * One process of one node: its node, and the production transfer engine on simulated ports. What its messenger moves is
 * its subclass's. One thread.
 */
abstract class Incarnation {
    final SimulatedNode node;
    final FailingPorts failing;
    final SimulatedTransport transport;
    final WatchedTransferEngine transfer;

    /** @param copies for writes from device memory; null if the process writes from host memory */
    Incarnation(
            World<?> world, SimulatedNode node, SplittableRandom random, EngineLimits limits, SimulatedCopies copies) {
        WorldListener listener = world.listener();
        this.node = node;
        failing = new FailingPorts(world.scenario(), world.clock(), world.trace(), node, world.isHealed());
        InvokedProcess invoked = InvokedProcess.start(
                world.clock(),
                random,
                node,
                world.fabric(),
                limits,
                world.scenario().workerCount(),
                copies,
                node::wake);
        transport = invoked.transport();
        transfer = new WatchedTransferEngine(
                FailingTransferEngine.of(invoked.engine(), node, failing), node.process(), listener);
        transport.fail(failing);
    }

    /** From now on nothing goes wrong in it. */
    void heal() {
        failing.heal();
        node.endPause();
    }
}
