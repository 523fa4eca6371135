package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.check.Violation;
import io.kvmessenger.testkit.sim.check.WorldListener;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.function.Function;

/**
 * What the runs of every subject have in common: time, trace, fabric and network, and the processes of the nodes, which
 * start, die and start again until everything heals.
 *
 * <p>One thread. It draws what fabric and network need and the moment of a process's death, nothing else: what happens
 * to whom is drawn by its runs.
 */
abstract class World<P extends Incarnation> {
    static final long CHECK_PERIOD_NS = 5 * Scenario.MILLI;
    static final long LEAVE_LIMIT_NS = 20 * Scenario.MILLI;

    final SplittableRandom random;
    private final Scenario scenario;
    private final SimulatedClock clock = new SimulatedClock();
    private final Trace trace = new Trace(clock);
    private final Partitions partitions = new Partitions();
    private final WorldListener listener;
    private final SimulatedFabric fabric;
    private final SimulatedNetwork network;
    private final Map<String, P> processes = new LinkedHashMap<>();
    private long lastIncarnation;
    private boolean healed;

    /** @param listener made before anything happens */
    World(Scenario scenario, Mutation mutation, SplittableRandom random, Function<World<P>, WorldListener> listener) {
        this.scenario = scenario;
        this.random = random;
        this.listener = listener.apply(this);
        fabric = new SimulatedFabric(
                clock, trace, scenario.fabricShape(), random.split(), this.listener, partitions, mutation);
        network = new SimulatedNetwork(clock, trace, scenario, random.split(), this.listener, partitions, mutation);
    }

    /** From the first process until everything has ended; throws a {@link Violation}. */
    abstract void live();

    /** Starts a node's next incarnation. */
    abstract P incarnate(String name);

    /** What has not ended yet, one sentence for each process that has some. */
    abstract List<String> unended();

    Simulation.Result result() {
        Violation violation = null;
        try {
            live();
        } catch (Violation found) {
            violation = found;
        } catch (RuntimeException | AssertionError bug) {
            violation = new Violation("Crash", "the messenger's thread would have met " + bug);
            violation.initCause(bug);
        }
        return new Simulation.Result(
                scenario.seed(), trace.hash(), trace.count(), trace.countByKind(), violation, trace.lastEvents());
    }

    final void advanceTo(long untilNs) {
        while (clock.step(untilNs)) {}
    }

    final void advance(long lengthNs) {
        advanceTo(clock.nowNs() + lengthNs);
    }

    final void awaitEnds() {
        long limitNs = clock.nowNs() + Scenario.LIVENESS_NS;
        while (!unended().isEmpty()) {
            if (clock.nowNs() >= limitNs) {
                throw new Violation(
                        "Liveness", "long after all faults there are still " + String.join("; ", unended()));
            }
            advance(CHECK_PERIOD_NS);
        }
    }

    final void heal() {
        healed = true;
        trace.add("world", "heal", "");
        fabric.heal();
        network.heal();
        partitions.mendAll();
        alive().forEach(Incarnation::heal);
    }

    // ---- incarnations

    final void start(String name) {
        processes.put(name, incarnate(name));
    }

    /** The next incarnation's node. */
    final SimulatedNode node(String name, SplittableRandom own, boolean slow, long clockOffsetNs) {
        double slowness = slow ? scenario.swarm().slowNode() : 0;
        SimulatedNode node = new SimulatedNode(clock, own, name, ++lastIncarnation, slowness, clockOffsetNs);
        trace.add(node.process(), "start", "");
        return node;
    }

    final void restart(String name) {
        if (!processes.get(name).node.alive()) {
            start(name);
            fabric.restarted(name);
        }
    }

    final void restartAll() {
        List.copyOf(processes.keySet()).forEach(this::restart);
    }

    final void kill(P process, boolean silentDeath) {
        if (process.node.alive()) {
            trace.add(process.node.process(), "die", silentDeath ? "silently" : "");
            process.node.die(silentDeath);
            listener.processDied(process.node.process());
            fabric.died(process.transport, silentDeath);
            network.died(process.node, silentDeath);
        }
    }

    /** The last step of an end in good order. */
    final void close(P process) {
        process.transfer.close();
        clock.after(random.nextLong(Scenario.MILLI), () -> kill(process, false));
    }

    // ---- parts of the world

    final boolean isHealed() {
        return healed;
    }

    final List<String> names() {
        return List.copyOf(processes.keySet());
    }

    final List<P> alive() {
        return processes.values().stream().filter(p -> p.node.alive()).toList();
    }

    /** The latest process of a node, dead or alive. */
    final P latest(String name) {
        return processes.get(name);
    }

    final Scenario scenario() {
        return scenario;
    }

    final SimulatedClock clock() {
        return clock;
    }

    final Trace trace() {
        return trace;
    }

    final Partitions partitions() {
        return partitions;
    }

    final WorldListener listener() {
        return listener;
    }

    final SimulatedFabric fabric() {
        return fabric;
    }

    final SimulatedNetwork network() {
        return network;
    }
}
