package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.testkit.sim.Scenario.Weather;
import io.kvmessenger.testkit.sim.check.Checkers;
import io.kvmessenger.testkit.sim.check.Violation;
import io.kvmessenger.testkit.sim.check.WorldListener;
import io.kvmessenger.transfer.Imm;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.CompletableFuture;

/**
 * One run: the world of a seed, from the first request until everything has ended. Two phases: with faults, nothing
 * wrong may happen; then everything heals, and everything must end.
 *
 * <p>One thread. The same seed gives the same run, event for event.
 */
public final class Simulation {
    private static final String SHUT_DOWN_REASON = "the engine is shutting down";
    private static final long DRAIN_LIMIT_NS = 20 * Scenario.MILLI;
    private static final long LEAVE_LIMIT_NS = 20 * Scenario.MILLI;
    private static final long CHECK_PERIOD_NS = 5 * Scenario.MILLI;

    private final Scenario scenario;
    private final Mutation mutation;
    private final NodeEngine.Maker engines;
    private final SplittableRandom random;
    private final SimulatedClock clock = new SimulatedClock();
    private final Trace trace = new Trace(clock);
    private final Partitions partitions = new Partitions();
    private final WorldListener listener;
    private final SimulatedFabric fabric;
    private final SimulatedNetwork network;
    private final Map<String, SimulatedProcess> processes = new LinkedHashMap<>();
    private long lastIncarnation;
    private boolean healed;

    /**
     * The result of a run.
     *
     * @param violation null when there was none
     */
    public record Result(
            long seed,
            long traceHash,
            long eventCount,
            Map<String, Integer> countByKind,
            Violation violation,
            String lastEvents) {
        public boolean passed() {
            return violation == null;
        }

        /** For a developer: the seed, the checker, its sentence and the preceding events. */
        public String report() {
            return passed()
                    ? "seed " + seed + " passed: " + eventCount + " events, trace " + Long.toHexString(traceHash)
                    : lastEvents + "seed " + seed + " violated " + violation.checker() + ": " + violation.getMessage();
        }
    }

    private Simulation(Scenario scenario, Weather weather, Mutation mutation, NodeEngine.Maker engines) {
        long seed = scenario.seed();
        this.scenario = scenario;
        this.mutation = mutation;
        boolean immsRepeat = mutation.limits(scenario.engineLimits()).generations() < Imm.GENERATION_COUNT;
        Checkers.World facts = new Checkers.World(
                clock::nowNs,
                process -> processes
                        .get(process.substring(0, process.indexOf('#')))
                        .node
                        .nowNs(),
                scenario.limits(),
                immsRepeat,
                scenario.checksumMode(),
                scenario.hardships().ports().any(),
                SHUT_DOWN_REASON);
        this.listener = weather == Weather.SOUND ? Checkers.allInSound(facts) : Checkers.all(facts);
        this.engines = engines;
        this.random = new SplittableRandom(seed);
        this.fabric = new SimulatedFabric(
                clock, trace, scenario.fabricShape(), random.split(), listener, partitions, mutation);
        this.network = new SimulatedNetwork(clock, trace, scenario, random.split(), listener, partitions, mutation);
        for (int i = 0; i < scenario.prefillerCount(); i++) {
            scenario.messengersOf("P" + i).forEach(this::start);
        }
        for (int i = 0; i < scenario.decoderCount(); i++) {
            scenario.messengersOf("D" + i).forEach(this::start);
        }
    }

    public static Result run(long seed, Mutation mutation) {
        return run(Weather.FAULTY, seed, mutation);
    }

    private static Result run(Weather weather, long seed, Mutation mutation) {
        return run(Scenario.draw(seed, weather), weather, mutation, SimulatedEngine::new);
    }

    /** A run in a given world, which need not be drawn from a seed. */
    static Result run(Weather weather, Scenario scenario, Mutation mutation) {
        return weather == Weather.QUIET
                ? runQuietly(scenario, mutation, SimulatedEngine::new)
                : run(scenario, weather, mutation, SimulatedEngine::new);
    }

    /** A run with the bug, in conditions that can expose it. */
    static Result runMutant(long seed, Mutation mutation) {
        return mutation.weather == Weather.QUIET
                ? runQuietly(Scenario.draw(seed, Weather.QUIET), mutation, SimulatedEngine::new)
                : run(
                        Scenario.draw(seed, mutation.weather).with(mutation.beside.draw(seed)),
                        mutation.weather,
                        mutation,
                        SimulatedEngine::new);
    }

    /**
     * A run in which network, fabric and processes are sound, while requests are abandoned, preempted, sent to one side
     * only or invalid: each end must come soon after its cause.
     */
    public static Result runSoundly(long seed, Mutation mutation) {
        return run(Weather.SOUND, seed, mutation);
    }

    public static Result runSoundly(long seed, PythonEngines engines) {
        return run(Scenario.drawAlone(seed, Weather.SOUND), Weather.SOUND, Mutation.NONE, engines);
    }

    /** The same as the first, with all arriving pages compared with their source. */
    static Result runComparing(long seed, Mutation mutation) {
        return run(
                Scenario.draw(seed, Weather.FAULTY).with(ChecksumMode.FULL),
                Weather.FAULTY,
                mutation,
                SimulatedEngine::new);
    }

    /** The same world with the real Python connector at each messenger. */
    public static Result run(long seed, PythonEngines engines) {
        return run(Scenario.drawAlone(seed, Weather.FAULTY), Weather.FAULTY, Mutation.NONE, engines);
    }

    /** A run without faults: every request has to arrive. */
    public static Result runQuietly(long seed) {
        return runQuietly(Scenario.draw(seed, Weather.QUIET), Mutation.NONE, SimulatedEngine::new);
    }

    public static Result runQuietly(long seed, PythonEngines engines) {
        return runQuietly(Scenario.drawAlone(seed, Weather.QUIET), Mutation.NONE, engines);
    }

    private static Result runQuietly(Scenario scenario, Mutation mutation, NodeEngine.Maker engines) {
        Result result = run(scenario, Weather.QUIET, mutation, engines);
        int requests = result.countByKind.getOrDefault("request", 0)
                * scenario.decoderGeometries().size();
        int arrived = result.countByKind.getOrDefault("arrived", 0);
        if (!result.passed() || requests == arrived) {
            return result;
        }
        Violation violation =
                new Violation("Quiet", "nothing went wrong and " + arrived + " of " + requests + " fetches arrived");
        return new Result(
                scenario.seed(), result.traceHash, result.eventCount, result.countByKind, violation, result.lastEvents);
    }

    private static Result run(Scenario scenario, Weather weather, Mutation mutation, NodeEngine.Maker engines) {
        long seed = scenario.seed();
        Simulation world = new Simulation(scenario, weather, mutation, engines);
        Violation violation = null;
        try {
            world.run();
        } catch (Violation found) {
            violation = found;
        } catch (RuntimeException | AssertionError bug) {
            violation = new Violation("Crash", "the messenger's thread would have met " + bug);
            violation.initCause(bug);
        }
        return new Result(
                seed,
                world.trace.hash(),
                world.trace.count(),
                world.trace.countByKind(),
                violation,
                world.trace.lastEvents());
    }

    private void run() {
        Router router = new Router(this, random.split());
        Faults faults = new Faults(this, random.split());
        advanceTo(Scenario.SAFETY_NS);
        faults.end();
        heal();
        awaitEnds();
        advanceTo(clock.nowNs()
                + 2 * (DRAIN_LIMIT_NS + LEAVE_LIMIT_NS)); // a process that was told to end earlier is dead by then
        List.copyOf(processes.keySet()).forEach(this::restart);
        advanceTo(clock.nowNs()
                + 2 * (scenario.limits().grantWaitNs() + scenario.limits().silenceLimitNs()));
        if (mutation != Mutation.PAYLOAD_DAMAGED) { // this damage must fail a request in this phase too
            router.sendBetweenAll();
        }
        awaitEnds();
        advanceTo(clock.nowNs() + CHECK_PERIOD_NS); // an engine tells its workers of a request's end one step later
        checkAtRest();
    }

    private void awaitEnds() {
        long limitNs = clock.nowNs() + Scenario.LIVENESS_NS;
        while (!allEnded()) {
            if (clock.nowNs() >= limitNs) {
                throw new Violation("Liveness", "long after all faults there are still " + describeUnended());
            }
            advanceTo(clock.nowNs() + CHECK_PERIOD_NS);
        }
    }

    private void checkAtRest() {
        for (SimulatedProcess process : alive()) {
            process.engine.checkAtRest();
            if (process.cache.fetchEntryCount() > 0) {
                throw new Violation(
                        "Memory",
                        process.node.process() + " keeps " + process.cache.fetchEntryCount()
                                + " entries about fetches and lost prefillers, and there are none");
            }
            listener.processAtRest(
                    process.node.process(),
                    process.cache.held(),
                    process.pool.freeCount(),
                    process.pool.pageCount(),
                    process.transfer.holdings(network.openLinks(process.node)));
        }
        listener.worldAtRest();
    }

    private void advanceTo(long untilNs) {
        while (clock.step(untilNs)) {}
    }

    private void heal() {
        healed = true;
        trace.add("world", "heal", "");
        fabric.heal();
        network.heal();
        partitions.mendAll();
        for (SimulatedProcess process : alive()) {
            process.failing.heal();
            process.node.endPause();
            process.engine.heal();
        }
    }

    private boolean allEnded() {
        return alive().stream().allMatch(process -> process.engine.unendedCount() == 0);
    }

    private String describeUnended() {
        List<String> found = new ArrayList<>();
        for (SimulatedProcess process : alive()) {
            if (process.engine.unendedCount() > 0) {
                found.add(process.node.process() + " " + process.engine.describeUnended() + " held "
                        + process.cache.held());
            }
        }
        return String.join("; ", found);
    }

    // ---- incarnations

    private void start(String name) {
        long clockOffsetNs = (random.nextInt(3) - 1) * 1_000_000_000_000L;
        SimulatedNode node = new SimulatedNode(
                clock,
                random.split(),
                name,
                ++lastIncarnation,
                random.nextBoolean() ? scenario.swarm().slowNode() : 0,
                clockOffsetNs);
        trace.add(node.process(), "start", "");
        SimulatedProcess process = new SimulatedProcess(this, node, scenario.geometryOf(name), random.split());
        processes.put(name, process);
        if (healed) {
            process.engine.heal();
        }
    }

    void kill(SimulatedProcess process, boolean silentDeath) {
        trace.add(process.node.process(), "die", silentDeath ? "silently" : "");
        process.node.die(silentDeath);
        listener.processDied(process.node.process());
        fabric.died(process.transport, silentDeath);
        network.died(process.node, silentDeath);
    }

    /** The process ends in good order: it drains for a limited time, says goodbye, then dies. */
    void shutDown(SimulatedProcess process) {
        trace.add(process.node.process(), "shutDown", "");
        CompletableFuture<Void> drained = new CompletableFuture<>();
        process.node.input(messenger -> messenger.drain(SHUT_DOWN_REASON, drained));
        clock.after(DRAIN_LIMIT_NS, () -> drained.complete(null));
        var unused = drained.thenRun(() -> process.node.input(messenger -> leave(process)));
    }

    private void leave(SimulatedProcess process) {
        trace.add(process.node.process(), "goodbye", "");
        CompletableFuture<Void> left = new CompletableFuture<>();
        process.messenger.leave(SHUT_DOWN_REASON, left);
        clock.after(LEAVE_LIMIT_NS, () -> left.complete(null));
        var unused = left.thenRun(() -> process.node.input(messenger -> close(process)));
    }

    private void close(SimulatedProcess process) {
        process.transfer.close();
        clock.after(random.nextLong(Scenario.MILLI), () -> {
            if (process.node.alive()) {
                kill(process, false);
            }
        });
    }

    void restart(String name) {
        if (!processes.get(name).node.alive()) {
            start(name);
            fabric.restarted(name);
        }
    }

    /** Passes a prompt to all live messengers of an engine. */
    void enqueue(String engine, TransferKey transfer, int tokenCount) {
        for (String name : scenario.messengersOf(engine)) {
            SimulatedProcess process = process(name);
            if (process != null) {
                process.engine.prefill(transfer, tokenCount);
            }
        }
    }

    // ---- parts of the world

    boolean isHealed() {
        return healed;
    }

    List<SimulatedProcess> alive() {
        return processes.values().stream().filter(p -> p.node.alive()).toList();
    }

    /** The live process of a node, or null. */
    SimulatedProcess process(String name) {
        SimulatedProcess process = processes.get(name);
        return process.node.alive() ? process : null;
    }

    Scenario scenario() {
        return scenario;
    }

    Mutation mutation() {
        return mutation;
    }

    NodeEngine.Maker engines() {
        return engines;
    }

    SimulatedClock clock() {
        return clock;
    }

    Trace trace() {
        return trace;
    }

    Partitions partitions() {
        return partitions;
    }

    WorldListener listener() {
        return listener;
    }

    SimulatedFabric fabric() {
        return fabric;
    }

    SimulatedNetwork network() {
        return network;
    }
}
