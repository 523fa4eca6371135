package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.Capacities;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.testkit.sim.Scenario.Weather;
import io.kvmessenger.testkit.sim.check.EchoChecker;
import io.kvmessenger.testkit.sim.check.Violation;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.CompletableFuture;

/**
 * One run of messengers whose subject has no KV: each asks the others at random moments. Two phases: with the faults of
 * the seed's {@link Swarm}, each ask has to arrive or to fail; then everything heals, and every ask has to arrive.
 *
 * <p>One thread. The same seed gives the same run, event for event.
 */
public final class EchoSimulation {
    private static final int NODES_MAX = 4;
    private static final int ASKS_AT_ONCE_MAX = 4;
    private static final long ASK_PERIOD_NS = 4 * Scenario.MILLI;
    private static final long CHECK_PERIOD_NS = 5 * Scenario.MILLI;
    private static final long LEAVE_LIMIT_NS = 20 * Scenario.MILLI;

    private final Scenario scenario;
    /** Those of the seed, without the few peers that its engines of a KV cache may have. */
    private final ProtocolLimits limits;

    private final SplittableRandom random;
    private final SimulatedClock clock = new SimulatedClock();
    private final Trace trace = new Trace(clock);
    private final Partitions partitions = new Partitions();
    private final EchoChecker checker;
    private final SimulatedFabric fabric;
    private final SimulatedNetwork network;
    private final Map<String, EchoProcess> processes = new LinkedHashMap<>();
    private final int asksAtOnce;
    private long lastIncarnation;
    private boolean healed;

    private EchoSimulation(Scenario drawn) {
        scenario = drawn;
        limits = drawn.limits().with(Capacities.PRODUCTION);
        random = new SplittableRandom(drawn.seed() * 0x9E3779B97F4A7C15L + 7);
        checker = new EchoChecker(scenario.hardships().ports().any());
        fabric = new SimulatedFabric(
                clock, trace, scenario.fabricShape(), random.split(), checker, partitions, Mutation.NONE);
        network = new SimulatedNetwork(clock, trace, scenario, random.split(), checker, partitions, Mutation.NONE);
        asksAtOnce = 1 + random.nextInt(ASKS_AT_ONCE_MAX);
        int nodeCount = 2 + random.nextInt(NODES_MAX - 1);
        for (int i = 0; i < nodeCount; i++) {
            start("E" + i);
        }
    }

    /** A run of this seed. In quiet weather no ask may fail. */
    static Simulation.Result run(long seed, Weather weather, Hardships.Kind beside) {
        EchoSimulation world = new EchoSimulation(Scenario.draw(seed, weather).with(beside.draw(seed)));
        Violation violation = null;
        try {
            world.run();
            int failed = world.trace.countByKind().getOrDefault("failed", 0);
            if (weather == Weather.QUIET && failed > 0) {
                violation = new Violation("Quiet", "nothing went wrong and " + failed + " asks failed");
            }
        } catch (Violation found) {
            violation = found;
        } catch (RuntimeException | AssertionError bug) {
            violation = new Violation("Crash", "the messenger's thread would have met " + bug);
            violation.initCause(bug);
        }
        return new Simulation.Result(
                seed,
                world.trace.hash(),
                world.trace.count(),
                world.trace.countByKind(),
                violation,
                world.trace.lastEvents());
    }

    private void run() {
        scheduleAsk();
        scheduleFault();
        advanceTo(Scenario.SAFETY_NS);
        heal();
        awaitEnds();
        advanceTo(clock.nowNs() + 2 * LEAVE_LIMIT_NS); // a process that leaves is dead by then
        List.copyOf(processes.keySet()).forEach(this::restart);
        advanceTo(clock.nowNs() + 2 * limits.silenceLimitNs());
        int failedBefore = trace.countByKind().getOrDefault("failed", 0);
        askAll();
        awaitEnds();
        int failed = trace.countByKind().getOrDefault("failed", 0) - failedBefore;
        if (failed > 0) {
            throw new Violation("Liveness", "long after all faults " + failed + " asks failed");
        }
        advanceTo(clock.nowNs() + CHECK_PERIOD_NS);
        for (EchoProcess process : alive()) {
            checker.atRest(
                    process.node.process(),
                    process.subject.held(),
                    process.transfer.holdings(network.openLinks(process.node)));
        }
        fabric.rethrow();
    }

    private void advanceTo(long untilNs) {
        while (clock.step(untilNs)) {}
    }

    private void awaitEnds() {
        long limitNs = clock.nowNs() + Scenario.LIVENESS_NS;
        while (alive().stream().anyMatch(process -> process.openCount() > 0)) {
            if (clock.nowNs() >= limitNs) {
                throw new Violation(
                        "Liveness",
                        String.join(
                                "; ",
                                alive().stream().map(EchoProcess::describe).toList()));
            }
            advanceTo(clock.nowNs() + CHECK_PERIOD_NS);
        }
    }

    private void heal() {
        healed = true;
        trace.add("world", "heal", "");
        fabric.heal();
        network.heal();
        partitions.mendAll();
        for (EchoProcess process : alive()) {
            process.failing.heal();
            process.node.endPause();
        }
    }

    // ---- asks

    private void scheduleAsk() {
        clock.after(random.nextLong(2 * ASK_PERIOD_NS), () -> {
            if (!healed) {
                askOnce();
                scheduleAsk();
            }
        });
    }

    private void askOnce() {
        List<EchoProcess> ready = new ArrayList<>(alive());
        ready.removeIf(process -> process.openCount() >= asksAtOnce);
        if (!ready.isEmpty()) {
            EchoProcess asker = ready.get(random.nextInt(ready.size()));
            List<String> others = new ArrayList<>(processes.keySet());
            others.remove(asker.node.name());
            asker.ask(others.get(random.nextInt(others.size())), drawLength());
        }
    }

    private void askAll() {
        for (EchoProcess asker : alive()) {
            for (String other : processes.keySet()) {
                if (!other.equals(asker.node.name())) {
                    asker.ask(other, drawLength());
                }
            }
        }
    }

    private int drawLength() {
        return 1 + random.nextInt(EchoProcess.HALF_LENGTH_BYTES);
    }

    // ---- faults

    private void scheduleFault() {
        clock.after(random.nextLong(2 * ASK_PERIOD_NS), () -> {
            if (!healed) {
                strike(scenario.swarm());
                scheduleFault();
            }
        });
    }

    private void strike(Swarm swarm) {
        if (happens(swarm.linkReset())) {
            network.resetAnyLink();
        }
        if (happens(swarm.halfOpen())) {
            network.silenceAnyLink();
        }
        if (happens(swarm.pathLoss())) {
            fabric.breakAnyPath();
        }
        if (happens(swarm.partition())) {
            partition();
        }
        if (happens(swarm.pauseShort())) {
            pause(random.nextLong(10 * Scenario.MILLI));
        }
        if (happens(swarm.pauseLong())) {
            pause(random.nextLong(3 * limits.silenceLimitNs()));
        }
        if (happens(swarm.crash())) {
            end();
        }
    }

    private boolean happens(double rate) {
        return random.nextDouble() < rate / 4;
    }

    private void partition() {
        List<String> names = List.copyOf(processes.keySet());
        String one = names.get(random.nextInt(names.size()));
        String other = names.get(random.nextInt(names.size()));
        if (!one.equals(other)) {
            int which = random.nextInt(3);
            trace.add("world", "cut", one + " " + other + " " + which);
            partitions.cut(one, other, which != 1, which != 0);
            clock.after(random.nextLong(80 * Scenario.MILLI), () -> partitions.heal(one, other));
        }
    }

    private void pause(long lengthNs) {
        List<EchoProcess> alive = alive();
        if (!alive.isEmpty()) {
            SimulatedNode node = alive.get(random.nextInt(alive.size())).node;
            trace.add(node.process(), "pause", lengthNs / 1000 + " us");
            node.pause(clock.nowNs() + lengthNs);
        }
    }

    private void end() {
        List<EchoProcess> alive = alive();
        if (alive.size() < 2) {
            return;
        }
        EchoProcess process = alive.get(random.nextInt(alive.size()));
        if (random.nextInt(3) == 0) {
            leave(process);
        } else {
            kill(process, random.nextBoolean());
        }
        clock.after(LEAVE_LIMIT_NS + random.nextLong(60 * Scenario.MILLI), () -> restart(process.node.name()));
    }

    private void kill(EchoProcess process, boolean silentDeath) {
        if (process.node.alive()) {
            trace.add(process.node.process(), "die", silentDeath ? "silently" : "");
            process.node.die(silentDeath);
            checker.processDied(process.node.process());
            fabric.died(process.transport, silentDeath);
            network.died(process.node, silentDeath);
        }
    }

    /** The process ends in good order: it takes no more asks, says goodbye, closes, dies. */
    private void leave(EchoProcess process) {
        trace.add(process.node.process(), "goodbye", "");
        CompletableFuture<Void> left = new CompletableFuture<>();
        process.node.input(messenger -> {
            messenger.drain("the echo is over", new CompletableFuture<>());
            messenger.leave("the echo is over", left);
        });
        clock.after(LEAVE_LIMIT_NS / 2, () -> left.complete(null));
        var unused = left.thenRun(() -> process.node.input(m -> {
            process.transfer.close();
            clock.after(random.nextLong(Scenario.MILLI), () -> kill(process, false));
        }));
    }

    private void start(String name) {
        SimulatedNode node = new SimulatedNode(
                clock,
                random.split(),
                name,
                ++lastIncarnation,
                random.nextBoolean() ? scenario.swarm().slowNode() : 0,
                (random.nextInt(3) - 1) * 1_000_000_000_000L);
        trace.add(node.process(), "start", "");
        processes.put(name, new EchoProcess(this, node, random.split()));
    }

    private void restart(String name) {
        if (!processes.get(name).node.alive()) {
            start(name);
            fabric.restarted(name);
        }
    }

    private List<EchoProcess> alive() {
        return processes.values().stream()
                .filter(process -> process.node.alive())
                .toList();
    }

    // ---- parts of the world

    boolean isHealed() {
        return healed;
    }

    Scenario scenario() {
        return scenario;
    }

    ProtocolLimits limits() {
        return limits;
    }

    SimulatedClock clock() {
        return clock;
    }

    Trace trace() {
        return trace;
    }

    EchoChecker checker() {
        return checker;
    }

    SimulatedFabric fabric() {
        return fabric;
    }

    SimulatedNetwork network() {
        return network;
    }
}
