package io.kvmessenger.testkit.sim;

import java.util.SplittableRandom;

/** Decides which calls of one process's ports fail. The draws are its own, so that other draws of a run stay. */
final class FailingPorts {
    private final PortFaults faults;
    private final SimulatedClock clock;
    private final Trace trace;
    private final SimulatedNode node;
    private final SplittableRandom random;
    private boolean healed;

    FailingPorts(Scenario scenario, SimulatedClock clock, Trace trace, SimulatedNode node, boolean healed) {
        this.faults = scenario.hardships().ports();
        this.clock = clock;
        this.trace = trace;
        this.node = node;
        this.healed = healed;
        random = new SplittableRandom(
                scenario.seed() * 0x94D049BB133111EBL ^ node.process().hashCode());
    }

    PortFaults faults() {
        return faults;
    }

    void heal() {
        healed = true;
    }

    boolean happens(String port, double share) {
        boolean fails = share > 0 && !healed && random.nextDouble() < share;
        if (fails) {
            trace.add(node.process(), "portFault " + port, "");
        }
        return fails;
    }

    void throwAt(String port, double share) {
        if (happens(port, share)) {
            throw new PlantedFault(port);
        }
    }

    void later(long limitNs, Runnable action) {
        clock.after(random.nextLong(limitNs), action);
    }
}
