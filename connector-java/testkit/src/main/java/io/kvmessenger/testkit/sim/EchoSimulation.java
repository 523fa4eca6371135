package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.Capacities;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.testkit.sim.Scenario.Weather;
import io.kvmessenger.testkit.sim.check.EchoChecker;
import io.kvmessenger.testkit.sim.check.Violation;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.CompletableFuture;

/**
 * One run of messengers whose subject has no KV: each asks the others at random moments. Two phases: with the faults of
 * the seed's {@link Swarm}, each ask has to arrive or to fail; then everything heals, and every ask has to arrive.
 *
 * <p>One thread. The same seed gives the same run, event for event.
 */
public final class EchoSimulation extends World<EchoProcess> {
    private static final int NODES_MAX = 4;
    private static final int ASKS_AT_ONCE_MAX = 4;
    private static final long ASK_PERIOD_NS = 4 * Scenario.MILLI;

    /** Those of the seed, without the few peers that its engines of a KV cache may have. */
    private final ProtocolLimits limits;

    private final EchoChecker checker;
    private final int asksAtOnce;

    private EchoSimulation(Scenario drawn, EchoChecker checker) {
        super(drawn, Mutation.NONE, new SplittableRandom(drawn.seed() * 0x9E3779B97F4A7C15L + 7), world -> checker);
        this.checker = checker;
        limits = drawn.limits().with(Capacities.PRODUCTION);
        asksAtOnce = 1 + random.nextInt(ASKS_AT_ONCE_MAX);
        int nodeCount = 2 + random.nextInt(NODES_MAX - 1);
        for (int i = 0; i < nodeCount; i++) {
            start("E" + i);
        }
    }

    /** A run of this seed. In quiet weather no ask may fail. */
    static Simulation.Result run(long seed, Weather weather, Hardships.Kind beside) {
        Scenario scenario = Scenario.draw(seed, weather).with(beside.draw(seed));
        boolean portsThrow = scenario.hardships().ports().any();
        return new EchoSimulation(scenario, new EchoChecker(portsThrow)).result();
    }

    @Override
    void live() {
        scheduleAsk();
        new RandomFaults<>(this, ASK_PERIOD_NS, limits.silenceLimitNs(), this::leave).schedule();
        advanceTo(Scenario.SAFETY_NS);
        heal();
        awaitEnds();
        advance(2 * LEAVE_LIMIT_NS); // a process that leaves is dead by then
        restartAll();
        advance(2 * limits.silenceLimitNs());
        int failedBefore = failedCount();
        askAll();
        awaitEnds();
        int failed = failedCount() - failedBefore;
        if (failed > 0) {
            throw new Violation("Liveness", "long after all faults " + failed + " asks failed");
        }
        advance(CHECK_PERIOD_NS);
        for (EchoProcess process : alive()) {
            checker.atRest(
                    process.node.process(),
                    process.subject.held(),
                    process.transfer.holdings(network().openLinks(process.node)));
        }
        fabric().rethrow();
        if (scenario().weather() == Weather.QUIET && failedCount() > 0) {
            throw new Violation("Quiet", "nothing went wrong and " + failedCount() + " asks failed");
        }
    }

    private int failedCount() {
        return trace().countByKind().getOrDefault("failed", 0);
    }

    @Override
    List<String> unended() {
        return alive().stream()
                .filter(process -> process.openCount() > 0)
                .map(EchoProcess::describe)
                .toList();
    }

    // ---- asks

    private void scheduleAsk() {
        clock().after(random.nextLong(2 * ASK_PERIOD_NS), () -> {
            if (!isHealed()) {
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
            List<String> others = new ArrayList<>(names());
            others.remove(asker.node.name());
            asker.ask(others.get(random.nextInt(others.size())), drawLength());
        }
    }

    private void askAll() {
        for (EchoProcess asker : alive()) {
            for (String other : names()) {
                if (!other.equals(asker.node.name())) {
                    asker.ask(other, drawLength());
                }
            }
        }
    }

    private int drawLength() {
        return 1 + random.nextInt(EchoProcess.HALF_LENGTH_BYTES);
    }

    /** The process ends in good order: it takes no more asks, says goodbye, closes, dies. */
    private void leave(EchoProcess process) {
        trace().add(process.node.process(), "goodbye", "");
        CompletableFuture<Void> left = new CompletableFuture<>();
        process.node.input(messenger -> {
            messenger.drain("the echo is over", new CompletableFuture<>());
            messenger.leave("the echo is over", left);
        });
        clock().after(LEAVE_LIMIT_NS / 2, () -> left.complete(null));
        var unused = left.thenRun(() -> process.node.input(m -> close(process)));
    }

    @Override
    EchoProcess incarnate(String name) {
        SplittableRandom own = random.split();
        boolean slow = random.nextBoolean();
        SimulatedNode node = node(name, own, slow, (random.nextInt(3) - 1) * 1_000_000_000_000L);
        return new EchoProcess(this, node, random.split());
    }

    ProtocolLimits limits() {
        return limits;
    }

    EchoChecker checker() {
        return checker;
    }
}
