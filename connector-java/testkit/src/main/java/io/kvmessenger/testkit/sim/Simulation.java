package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.testkit.sim.Scenario.Weather;
import io.kvmessenger.testkit.sim.check.Checkers;
import io.kvmessenger.testkit.sim.check.Violation;
import io.kvmessenger.testkit.sim.check.WorldListener;
import io.kvmessenger.transfer.Imm;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;

/**
 * One run: the world of a seed, from the first request until everything has ended. Two phases: with faults, nothing
 * wrong may happen; then everything heals, and everything must end.
 *
 * <p>One thread. The same seed gives the same run, event for event.
 */
public final class Simulation extends World<SimulatedProcess> {
    private static final String SHUT_DOWN_REASON = "the engine is shutting down";
    private static final long DRAIN_LIMIT_NS = 20 * Scenario.MILLI;

    private final Mutation mutation;
    private final NodeEngine.Maker engines;

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
        super(
                scenario,
                mutation,
                new SplittableRandom(scenario.seed()),
                world -> checkers(world, scenario, weather, mutation));
        this.mutation = mutation;
        this.engines = engines;
        for (int i = 0; i < scenario.prefillerCount(); i++) {
            scenario.messengersOf("P" + i).forEach(this::start);
        }
        for (int i = 0; i < scenario.decoderCount(); i++) {
            scenario.messengersOf("D" + i).forEach(this::start);
        }
    }

    private static WorldListener checkers(
            World<SimulatedProcess> world, Scenario scenario, Weather weather, Mutation mutation) {
        boolean immsRepeat = mutation.limits(scenario.engineLimits()).generations() < Imm.GENERATION_COUNT;
        Function<String, SimulatedNode> nodeOf =
                process -> world.latest(process.substring(0, process.indexOf('#'))).node;
        Checkers.World facts = new Checkers.World(
                world.clock()::nowNs,
                process -> nodeOf.apply(process).nowNs(),
                process -> nodeOf.apply(process).pausedUntilNs(),
                process -> scenario.isOlderBuild(nodeOf.apply(process).name()),
                scenario.limits(),
                immsRepeat,
                scenario.checksumMode(),
                scenario.prefillerGeometries().getFirst().hasDividedPages(),
                scenario.hardships().ports().any(),
                SHUT_DOWN_REASON);
        return weather == Weather.SOUND ? Checkers.allInSound(facts) : Checkers.all(facts);
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
        Scenario scenario = Scenario.draw(seed, mutation.weather).with(mutation.beside.draw(seed));
        return mutation.weather == Weather.QUIET
                ? runQuietly(scenario, mutation, SimulatedEngine::new)
                : run(scenario, mutation.weather, mutation, SimulatedEngine::new);
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
        return new Simulation(scenario, weather, mutation, engines).result();
    }

    @Override
    void live() {
        Router router = new Router(this, random.split());
        Faults faults = new Faults(this, random.split());
        advanceTo(Scenario.SAFETY_NS);
        faults.end();
        heal();
        awaitEnds();
        advance(2 * (DRAIN_LIMIT_NS + LEAVE_LIMIT_NS)); // a process that was told to end earlier is dead by then
        restartAll();
        advance(2 * (scenario().limits().grantWaitNs() + scenario().limits().silenceLimitNs()));
        if (mutation != Mutation.PAYLOAD_DAMAGED) { // this damage must fail a request in this phase too
            router.sendBetweenAll();
            advance(router.spreadNs());
        }
        awaitEnds();
        alive().forEach(process -> process.engine.pullFromAll());
        awaitEnds();
        advance(CHECK_PERIOD_NS); // an engine tells its workers of a request's end one step later
        if (scenario().limits().capacities().decodersKept() < scenario().decoderCount()) {
            advance(2 * scenario().limits().silenceLimitNs()); // what is idle leaves, and its data paths close
        }
        checkAtRest();
    }

    private void checkAtRest() {
        for (SimulatedProcess process : alive()) {
            process.engine.checkAtRest();
            if (process.cache.fetchEntryCount() > 0) {
                throw new Violation(
                        "Memory",
                        process.node.process() + " keeps " + process.cache.fetchEntryCount()
                                + " entries about fetches, questions and lost prefillers, and there are none");
            }
            listener()
                    .processAtRest(
                            process.node.process(),
                            process.cache.held(),
                            process.pool.freeCount(),
                            process.pool.pageCount(),
                            process.transfer.holdings(network().openLinks(process.node)));
        }
        listener().worldAtRest();
    }

    @Override
    List<String> unended() {
        List<String> found = new ArrayList<>();
        for (SimulatedProcess process : alive()) {
            if (process.engine.unendedCount() > 0) {
                found.add(process.node.process() + " " + process.engine.describeUnended() + " held "
                        + process.cache.held());
            }
        }
        return found;
    }

    // ---- incarnations

    @Override
    SimulatedProcess incarnate(String name) {
        long clockOffsetNs = (random.nextInt(3) - 1) * 1_000_000_000_000L;
        SimulatedNode node = node(name, random.split(), random.nextBoolean(), clockOffsetNs);
        SimulatedProcess process = new SimulatedProcess(this, node, scenario().geometryOf(name), random.split());
        if (isHealed()) {
            process.engine.heal();
        }
        return process;
    }

    /** The process ends in good order: it drains for a limited time, says goodbye, then dies. */
    void shutDown(SimulatedProcess process) {
        trace().add(process.node.process(), "shutDown", "");
        CompletableFuture<Void> drained = new CompletableFuture<>();
        process.node.input(messenger -> messenger.drain(SHUT_DOWN_REASON, drained));
        clock().after(DRAIN_LIMIT_NS, () -> drained.complete(null));
        var unused = drained.thenRun(() -> process.node.input(messenger -> leave(process)));
    }

    private void leave(SimulatedProcess process) {
        trace().add(process.node.process(), "goodbye", "");
        CompletableFuture<Void> left = new CompletableFuture<>();
        process.messenger.leave(SHUT_DOWN_REASON, left);
        clock().after(LEAVE_LIMIT_NS, () -> left.complete(null));
        var unused = left.thenRun(() -> process.node.input(messenger -> close(process)));
    }

    /** Passes a prompt to all live messengers of an engine. */
    void enqueue(String engine, TransferKey transfer, int tokenCount) {
        for (String name : scenario().messengersOf(engine)) {
            SimulatedProcess process = process(name);
            if (process != null) {
                process.engine.prefill(transfer, tokenCount);
            }
        }
    }

    // ---- parts of the world

    /** The live process of a node, or null. */
    SimulatedProcess process(String name) {
        SimulatedProcess process = latest(name);
        return process.node.alive() ? process : null;
    }

    Mutation mutation() {
        return mutation;
    }

    NodeEngine.Maker engines() {
        return engines;
    }
}
