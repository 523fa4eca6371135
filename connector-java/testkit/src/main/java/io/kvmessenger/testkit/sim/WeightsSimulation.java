package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.Capacities;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.testkit.sim.Scenario.Weather;
import io.kvmessenger.testkit.sim.check.Violation;
import io.kvmessenger.testkit.sim.check.WeightsChecker;
import io.kvmessenger.weights.wire.WeightsFrame;
import java.util.List;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.function.Predicate;
import java.util.stream.IntStream;

/**
 * One run of trainers that send weights to servers. Two phases: with faults, of which some look for a process that is
 * busy and some for a frame on its way, nothing wrong may happen; then everything heals, all ends, and each trainer's
 * next version must be served by every server.
 *
 * <p>One thread. The same seed gives the same run, event for event.
 */
public final class WeightsSimulation extends World<WeightsProcess> {
    /** After which a trainer does not wait for a server's answer to a call any more. */
    static final long CALL_LIMIT_NS = 150 * Scenario.MILLI;

    private static final Set<String> BRIEF = Set.of("GROUND", "COMPARING", "APPLYING", "QUARANTINED", "WRITING");

    private static final String REASON = "the training is over";
    private static final long DRAIN_LIMIT_NS = 20 * Scenario.MILLI;
    private static final long FAULT_PERIOD_NS = 4 * Scenario.MILLI;
    private static final long LOOK_PERIOD_NS = 300 * Scenario.MICRO;
    /** Where bits are flipped, also after all faults. */
    private static final int REPEATS_MAX = 50;

    private static final long CALL_NS = 2 * Scenario.MILLI;
    /** Reasons of a refusal where nothing is wrong: trainers compete. */
    private static final List<String> OF_COMPETITION = List.of("is on its way into this server", "expected one above");

    private final WeightsShape shape;
    private final ProtocolLimits limits;
    private final WeightsChecker checker;
    private final EngineFault fault;
    private final RandomFaults<WeightsProcess> faults;
    private final SplittableRandom aimed;
    private long lastVersion;
    private long lastUpdateId;

    /** The parts of a run that are made before its world. */
    private record Drawn(
            Scenario scenario, WeightsShape shape, EngineFault fault, Watch watch, WeightsChecker checker) {
        static Drawn of(Scenario scenario, EngineFault fault) {
            WeightsShape shape = WeightsShape.draw(scenario.seed(), scenario.weather());
            Watch watch = new Watch();
            boolean portsThrow = scenario.hardships().ports().any();
            return new Drawn(
                    scenario, shape, fault, watch, new WeightsChecker(portsThrow, shape.damages(), watch::sent));
        }
    }

    /** Passes frames on to a world that is made later. */
    private static final class Watch {
        private WeightsSimulation world;

        void sent(String from, String to, WeightsFrame frame) {
            world.onFrame(from, to, frame);
        }
    }

    private WeightsSimulation(Drawn drawn) {
        super(
                drawn.scenario(),
                drawn.shape().damages() ? Mutation.PAYLOAD_DAMAGED : Mutation.NONE,
                new SplittableRandom(drawn.scenario().seed() * 0x9E3779B97F4A7C15L + 11),
                world -> drawn.checker());
        shape = drawn.shape();
        checker = drawn.checker();
        fault = drawn.fault();
        drawn.watch().world = this;
        limits = drawn.scenario().limits().with(Capacities.PRODUCTION);
        aimed = random.split();
        faults = new RandomFaults<>(this, FAULT_PERIOD_NS, limits.silenceLimitNs(), this::leave);
        servers().forEach(this::start);
        IntStream.range(0, shape.trainerCount()).forEach(i -> start("T" + i));
    }

    /** A run of this seed, with a bug in its engines or without. */
    public static Simulation.Result run(long seed, Weather weather, Hardships.Kind beside, EngineFault fault) {
        Scenario scenario = Scenario.draw(seed, weather).with(beside.draw(seed));
        return new WeightsSimulation(Drawn.of(scenario, fault)).result();
    }

    @Override
    void live() {
        if (scenario().weather() == Weather.FAULTY) {
            faults.schedule();
            scheduleLook();
            scheduleJump();
        }
        advanceTo(Scenario.SAFETY_NS);
        heal();
        awaitEnds();
        advance(2 * (DRAIN_LIMIT_NS + LEAVE_LIMIT_NS)); // a process that leaves is dead by then
        restartAll();
        advance(2 * limits.silenceLimitNs());
        awaitEnds();
        List<SimulatedTrainer> even = trainers(trainer -> !trainer.isOdd());
        if (alive(SimulatedServer.class).stream().anyMatch(SimulatedServer::keepsUnloaded)) {
            even.forEach(this::connectAndSend); // what has landed keeps others out, until its trainer sends again
        }
        even.forEach(this::updateAll);
        advance(CHECK_PERIOD_NS);
        checkAtRest();
        fabric().rethrow();
    }

    /** Long after all faults, each server serves what this trainer sends. */
    private void updateAll(SimulatedTrainer trainer) {
        long updateId = connectAndSend(trainer);
        for (int i = 0; shape.damages() && i < REPEATS_MAX && !servedByAll(updateId); i++) {
            updateId = sendToAll(trainer);
        }
        for (SimulatedServer server : alive(SimulatedServer.class)) {
            if (updateId == 0 || checker.servesId(server.node.process()) != updateId) {
                throw new Violation(
                        "Liveness",
                        "long after all faults " + server.node.process() + " serves update "
                                + checker.servesId(server.node.process()) + ", expected " + updateId + " of "
                                + trainer.node.process() + ", which is attached to "
                                + trainer.attachedCount());
            }
        }
    }

    private long connectAndSend(SimulatedTrainer trainer) {
        trainer.connect();
        advance(2 * limits.connectLimitNs());
        return sendToAll(trainer);
    }

    private long sendToAll(SimulatedTrainer trainer) {
        long updateId = trainer.send(++lastVersion);
        awaitEnds();
        return updateId;
    }

    private boolean servedByAll(long updateId) {
        return alive(SimulatedServer.class).stream()
                .allMatch(server -> checker.servesId(server.node.process()) == updateId);
    }

    private void checkAtRest() {
        for (WeightsProcess process : alive()) {
            checker.atRest(
                    process.node.process(),
                    process.held(),
                    process.transfer.holdings(network().openLinks(process.node)));
        }
        trainers(trainer -> true).forEach(trainer -> checker.trainerAtRest(trainer.node.process()));
        for (SimulatedServer server : alive(SimulatedServer.class)) {
            checker.serverAtRest(server.node.process(), server.keepsUnloaded());
        }
    }

    @Override
    List<String> unended() {
        return alive().stream()
                .map(process -> process.isLeaving() ? process.node.process() + " leaves" : process.unended())
                .filter(sentence -> !sentence.isEmpty())
                .toList();
    }

    // ---- faults

    /** Looks often at what processes do, and strikes some that are busy: so each state is met. */
    private void scheduleLook() {
        clock().after(aimed.nextLong(2 * LOOK_PERIOD_NS), () -> {
            if (!isHealed()) {
                alive().forEach(this::strikeIfBusy);
                scheduleLook();
            }
        });
    }

    private void strikeIfBusy(WeightsProcess process) {
        String state = process.busyWith();
        if (!state.isEmpty() && aimed.nextDouble() < faultsIn(state)) {
            int which = aimed.nextInt(3);
            String what = List.of("end", "stop", "reset").get(which);
            trace().add(process.node.process(), what + " in " + state, "");
            switch (which) {
                case 0 -> faults.end(process);
                case 1 -> faults.pause(process, aimed.nextLong(3 * limits.silenceLimitNs()));
                default -> network().resetLinks(process.node, null);
            }
        }
    }

    /** Some states last for much less time than others. */
    private double faultsIn(String state) {
        return shape.faultsInState() * (BRIEF.contains(state) ? 10 : 1);
    }

    private void onFrame(String from, String to, WeightsFrame frame) {
        String name = frame.getBodyCase().name();
        trace().add(from, "frame", name + " to " + to);
        if (!isHealed() && aimed.nextDouble() < shape.framesLost()) {
            trace().add(from, "lost " + name, "to " + to);
            clock().after(0, () -> network().resetLinks(nodeOf(from), nodeOf(to)));
        }
    }

    private SimulatedNode nodeOf(String process) {
        return latest(process.substring(0, process.indexOf('#'))).node;
    }

    private void scheduleJump() {
        ClockJumps jumps = scenario().hardships().jumps();
        if (jumps.periodNs() > 0) {
            clock().after(aimed.nextLong(2 * jumps.periodNs()), () -> {
                List<WeightsProcess> alive = alive();
                if (!isHealed() && !alive.isEmpty()) {
                    jump(alive.get(aimed.nextInt(alive.size())), jumps);
                    scheduleJump();
                }
            });
        }
    }

    private void jump(WeightsProcess process, ClockJumps jumps) {
        long lengthNs = ClockJumps.drawLengthNs(limits, aimed);
        if (aimed.nextDouble() < jumps.stops()) {
            faults.pause(process, lengthNs);
        } else {
            trace().add(process.node.process(), "jump", lengthNs / 1000 + " us");
            process.node.jump(lengthNs);
        }
    }

    /** The process ends in good order: it posts no more, says goodbye, closes, dies. */
    private void leave(WeightsProcess process) {
        if (process.isLeaving() || !process.node.alive()) {
            return;
        }
        trace().add(process.node.process(), "leave", "");
        process.onLeaving();
        CompletableFuture<Void> drained = new CompletableFuture<>();
        CompletableFuture<Void> left = new CompletableFuture<>();
        process.node.input(messenger -> messenger.drain(REASON, drained));
        clock().after(DRAIN_LIMIT_NS, () -> drained.complete(null));
        var unused = drained.thenRun(() -> process.node.input(messenger -> {
            messenger.leave(REASON, left);
            clock().after(LEAVE_LIMIT_NS, () -> left.complete(null));
        }));
        var unusedToo = left.thenRun(() -> process.node.input(messenger -> close(process)));
    }

    /** As {@link #leave}, and its next incarnation starts later. */
    void leaveAndReturn(WeightsProcess process) {
        leave(process);
        clock().after(
                        2 * (DRAIN_LIMIT_NS + LEAVE_LIMIT_NS) + random.nextLong(60 * Scenario.MILLI),
                        () -> restart(process.node.name()));
    }

    // ---- what trainers and servers use

    /** A call of a server's API, which comes a little later, or never if the server does not live. */
    void call(String server, Consumer<SimulatedServer> request) {
        clock().after(random.nextLong(2 * CALL_NS), () -> {
            SimulatedServer called = (SimulatedServer) latest(server);
            called.later(0, () -> request.accept(called));
        });
    }

    /** Mostly the newest; sometimes one that was sent before, as by a late trainer or by one that was started again. */
    long drawVersion() {
        return switch (scenario().weather() == Weather.QUIET ? 0 : random.nextInt(8)) {
            case 6 -> Math.max(1, lastVersion);
            case 7 -> Math.max(1, lastVersion - random.nextInt(3));
            default -> ++lastVersion;
        };
    }

    /** Where nothing goes wrong, trainers only compete. */
    void onSenderEnd(String trainer, String reason) {
        boolean competition =
                shape.trainerCount() > 1 && OF_COMPETITION.stream().anyMatch(reason::contains);
        if (scenario().weather() == Weather.QUIET && !competition) {
            throw new Violation("Quiet", "nothing went wrong and " + trainer + " heard: " + reason);
        }
    }

    /** Names of a trainer's, which no other trainer gives. */
    long nextUpdateId() {
        return ++lastUpdateId;
    }

    List<String> servers() {
        return IntStream.range(0, shape.serverCount()).mapToObj(i -> "S" + i).toList();
    }

    private <P extends WeightsProcess> List<P> alive(Class<P> kind) {
        return alive().stream().filter(kind::isInstance).map(kind::cast).toList();
    }

    private List<SimulatedTrainer> trainers(Predicate<SimulatedTrainer> chosen) {
        return alive(SimulatedTrainer.class).stream().filter(chosen).toList();
    }

    @Override
    WeightsProcess incarnate(String name) {
        SimulatedNode node =
                node(name, random.split(), random.nextBoolean(), (random.nextInt(3) - 1) * 1_000_000_000_000L);
        SplittableRandom own = random.split();
        return name.startsWith("T") ? new SimulatedTrainer(this, node, own) : new SimulatedServer(this, node, own);
    }

    ProtocolLimits limits() {
        return limits;
    }

    WeightsShape shape() {
        return shape;
    }

    WeightsChecker checker() {
        return checker;
    }

    EngineFault fault() {
        return fault;
    }
}
