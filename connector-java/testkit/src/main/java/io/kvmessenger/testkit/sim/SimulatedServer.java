package io.kvmessenger.testkit.sim;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.weights.LandingState;
import io.kvmessenger.weights.ReceiverEvents;
import io.kvmessenger.weights.WeightReceiver;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.stream.IntStream;

/**
 * One incarnation of a server: the production receiver, and an engine of several ranks that loads from the landing as
 * {@code kv_connector.vllm.weights} does: one call after the other, each of them decided by the messenger, mapped by all
 * ranks before one loads, and ended with the engine where a rank has loaded in part.
 */
final class SimulatedServer extends WeightsProcess implements ReceiverEvents {
    private static final int PARTS_OF_A_LOAD = 3;
    /** A trainer may name itself again while this process is stopped. */
    private static final int DIALS_MAX = 4;

    private static final String LATE = "the messenger did not answer in time";

    private final WeightReceiver receiver;
    /** Tickets of sessions that have not ended. */
    private final Set<String> dials = new HashSet<>();
    /** Calls that have not been begun. */
    private final ArrayDeque<Call> calls = new ArrayDeque<>();
    /** Questions to the messenger that it has not answered, in order; the engine may not wait for them any more. */
    private final ArrayDeque<Question> questions = new ArrayDeque<>();

    /** For a mutant: answers that were not waited for. */
    private final Map<Long, String> stale = new HashMap<>();
    /** Null while the engine only serves. */
    private Load load;

    private record Call(long updateId, Runnable returned) {}

    private static final class Question {
        final Load load;
        boolean awaited = true;

        Question(Load load) {
            this.load = load;
        }
    }

    private final class Load {
        final Call call;
        final List<byte[]> ranks = IntStream.range(0, shape.rankCount())
                .mapToObj(rank -> new byte[shape.lengthBytes()])
                .toList();
        final boolean[] unmapped = new boolean[shape.rankCount()];
        int awaitedRanks;
        String failure = "";

        Load(Call call) {
            this.call = call;
        }
    }

    SimulatedServer(WeightsSimulation world, SimulatedNode node, SplittableRandom random) {
        super(world, node, random);
        SubjectPorts ports = ports();
        receiver = new WeightReceiver(SimulatedTrainer.MANIFEST, region, shape.parts(), ports, this);
        checker.serverStarted(node.process(), shape.rankCount(), bytes);
        open(receiver, ports);
    }

    // ---- calls of trainers

    void dial(String trainer, String ticket) {
        String process = ticket.substring(0, ticket.indexOf('/'));
        if (isLeaving()
                || dials.stream().filter(each -> each.startsWith(process)).count() >= DIALS_MAX) {
            return;
        }
        dials.add(ticket);
        String refusal = happens(shape.refusals()) ? "this server has another model" : "";
        checker.dialled(node.process(), ticket, !refusal.isEmpty());
        node.input(m -> receiver.dial(trainer, 1, ticket, refusal));
    }

    /** @param returned runs when the call has returned, whatever came of it */
    void load(long updateId, Runnable returned) {
        calls.add(new Call(updateId, returned));
        begin();
    }

    private void begin() {
        if (load == null && !calls.isEmpty() && !isLeaving()) {
            Load next = new Load(calls.remove());
            load = next;
            trace("load", String.valueOf(next.call.updateId));
            ask(next);
        }
    }

    // ---- the decision

    private void ask(Load next) {
        long updateId = next.call.updateId;
        String known = stale.remove(updateId);
        Question question = new Question(next);
        questions.add(question);
        node.input(m -> receiver.apply(updateId));
        if (known != null) {
            question.awaited = false;
            decide(next, known);
            return;
        }
        later(shape.decisionLimitNs(), () -> {
            if (question.awaited && questions.contains(question) && !world.isHealed()) {
                question.awaited = false;
                trace("undecided", String.valueOf(updateId));
                decide(next, LATE);
            }
        });
    }

    @Override
    public void decided(long updateId, String reason) {
        trace("decided", updateId + " " + reason);
        checker.decided(node.process(), updateId, reason);
        node.inNextStep(random, () -> {
            Question question = questions.remove();
            if (question.awaited) {
                decide(question.load, reason);
            } else if (world.fault() == EngineFault.STALE_DECISION) {
                stale.put(updateId, reason);
            }
        });
    }

    private void decide(Load decided, String reason) {
        if (reason.isEmpty() || world.fault() == EngineFault.LOADED_UNDECIDED) {
            map(decided);
        } else {
            report(decided, reason);
        }
    }

    // ---- the load

    private long drawStepNs() {
        return random.nextLong(2 * shape.stepNs());
    }

    private void map(Load begun) {
        begun.awaitedRanks = shape.rankCount();
        for (int i = 0; i < shape.rankCount(); i++) {
            int rank = i;
            later(drawStepNs(), () -> {
                begun.unmapped[rank] = happens(shape.mapFails());
                if (--begun.awaitedRanks == 0) {
                    onMapped(begun);
                }
            });
        }
    }

    private void onMapped(Load mapped) {
        long unmapped = IntStream.range(0, shape.rankCount())
                .filter(rank -> mapped.unmapped[rank])
                .count();
        boolean leftOut = world.fault() == EngineFault.RANK_LEFT_OUT && unmapped < shape.rankCount();
        if (unmapped > 0 && !leftOut) {
            trace("unmapped", String.valueOf(mapped.call.updateId));
            report(mapped, "a rank cannot map the landing");
            return;
        }
        mapped.awaitedRanks = shape.rankCount() - (int) unmapped;
        for (int rank = 0; rank < shape.rankCount(); rank++) {
            if (!mapped.unmapped[rank]) {
                loadPart(mapped, rank, 0);
            }
        }
    }

    private void loadPart(Load running, int rank, int part) {
        later(drawStepNs(), () -> {
            if (part == 0) {
                checker.rankBegins(node.process(), rank, running.call.updateId);
            }
            if (happens(shape.loadFails() / PARTS_OF_A_LOAD)) {
                running.failure = "rank " + rank + " has no memory";
                onRankEnded(running);
                return;
            }
            int from = shape.lengthBytes() * part / PARTS_OF_A_LOAD;
            int to = shape.lengthBytes() * (part + 1) / PARTS_OF_A_LOAD;
            MemorySegment.copy(bytes, ValueLayout.JAVA_BYTE, from, running.ranks.get(rank), from, to - from);
            if (part + 1 < PARTS_OF_A_LOAD) {
                loadPart(running, rank, part + 1);
            } else {
                checker.rankLoaded(node.process(), rank, running.call.updateId, running.ranks.get(rank));
                onRankEnded(running);
            }
        });
    }

    private void onRankEnded(Load running) {
        if (world.fault() == EngineFault.REPORTED_WITH_FIRST_RANK && running.failure.isEmpty()) {
            node.input(m -> receiver.applied(running.call.updateId, ""));
        }
        if (--running.awaitedRanks > 0) {
            return;
        }
        if (!running.failure.isEmpty() && world.fault() != EngineFault.TORN_ENGINE_GOES_ON) {
            trace("torn", running.failure);
            world.leaveAndReturn(this);
            return;
        }
        if (running.failure.isEmpty()) {
            trace("loaded", String.valueOf(running.call.updateId));
            checker.loaded(node.process(), running.call.updateId);
        }
        report(running, running.failure);
    }

    /** The call's end: what came of it goes to the messenger, and the engine serves. */
    private void report(Load ended, String failure) {
        checker.loadEnded(node.process());
        node.input(m -> receiver.applied(ended.call.updateId, failure));
        load = null;
        ended.call.returned.run();
        begin();
    }

    // ---- events

    @Override
    public void landed(long updateId, long version, ByteString contentDigest) {
        trace("landed", updateId + " version " + version);
        checker.landed(node.process(), updateId, version, contentDigest);
    }

    @Override
    public void ended(String ticket, String reason) {
        trace("ended", ticket + ": " + reason);
        dials.remove(ticket);
        checker.sessionEnded(node.process(), ticket, reason);
    }

    // ---- what it holds

    @Override
    Map<String, Integer> held() {
        return receiver.held();
    }

    /** Whether its landing is at rest. */
    boolean landingRests() {
        return switch (receiver.state()) {
            case EMPTY, LANDED, HELD -> true;
            case GROUND, COMPARING, APPLYING, QUARANTINED -> false;
        };
    }

    /** Whether a version has landed that nothing has loaded or refused. */
    boolean keepsUnloaded() {
        return receiver.state() == LandingState.LANDED;
    }

    @Override
    String busyWith() {
        return receiver.state().name();
    }

    @Override
    String unended() {
        return load == null && calls.isEmpty() && landingRests()
                ? ""
                : node.process() + " is " + receiver.state() + ", loads " + (load == null ? "nothing" : "an update")
                        + " and holds " + held();
    }
}
