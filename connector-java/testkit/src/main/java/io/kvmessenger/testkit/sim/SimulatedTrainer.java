package io.kvmessenger.testkit.sim;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.weights.LandingParts;
import io.kvmessenger.weights.SenderEvents;
import io.kvmessenger.weights.WeightSender;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SplittableRandom;

/**
 * One incarnation of a trainer: the production sender, and what drives it as {@code kv_connector.weights.sender} does.
 * It names itself to servers, sends one version after the other, and has servers load what has landed.
 */
final class SimulatedTrainer extends WeightsProcess implements SenderEvents {
    static final ByteString MANIFEST = ByteString.copyFrom(new byte[32]);
    private static final ByteString OTHER_MANIFEST = ByteString.copyFromUtf8("another model");

    private static final long CONNECT_NS = 4 * Scenario.MILLI;
    private static final long PAUSE_NS = 4 * Scenario.MILLI;
    /** How long a server's report of a load is waited for, after the call that loaded has ended. */
    private static final long REPORT_NS = 20 * Scenario.MILLI;

    private final WeightSender sender;
    /** Whether servers must refuse it: its model or its release is another. */
    private final boolean odd;

    private final Map<String, String> serverByTicket = new LinkedHashMap<>();
    private final Set<String> attached = new LinkedHashSet<>();
    /** Parts of updates of which no event has come: writes may read this side's memory. */
    private final Set<Part> unheard = new LinkedHashSet<>();
    /** The last update; null before the first. */
    private Sending sending;

    /** What a server's part of an update is at, as this side has heard. */
    private enum Stage {
        SENT,
        LANDED,
        LOADING,
        ENDED
    }

    private record Part(long updateId, String ticket) {}

    private static final class Sending {
        final long id;
        final Map<String, Stage> stages = new LinkedHashMap<>();
        boolean loads;

        Sending(long id, List<String> tickets) {
            this.id = id;
            tickets.forEach(ticket -> stages.put(ticket, Stage.SENT));
        }

        boolean over() {
            return stages.values().stream().allMatch(stage -> stage == Stage.ENDED);
        }

        boolean landing() {
            return stages.containsValue(Stage.SENT);
        }
    }

    SimulatedTrainer(WeightsSimulation world, SimulatedNode node, SplittableRandom random) {
        super(world, node, random);
        boolean otherModel = happens(shape.oddTrainers());
        boolean otherRelease = happens(shape.oddTrainers());
        odd = otherModel || otherRelease;
        SubjectPorts ports = ports();
        LandingParts parts = otherRelease ? shape.otherParts() : shape.parts();
        sender = new WeightSender(otherModel ? OTHER_MANIFEST : MANIFEST, region, parts, ports, this);
        if (otherModel) {
            checker.startedWithOtherModel(node.process());
        }
        fill();
        open(sender, ports);
        scheduleRound();
    }

    private void fill() {
        byte[] content = new byte[shape.lengthBytes()];
        random.nextBytes(content);
        MemorySegment.copy(content, 0, bytes, ValueLayout.JAVA_BYTE, 0, content.length);
    }

    int attachedCount() {
        return attached.size();
    }

    boolean isOdd() {
        return odd;
    }

    // ---- rounds

    private void scheduleRound() {
        later(random.nextLong(2 * PAUSE_NS), () -> {
            if (!world.isHealed() && !isLeaving()) {
                round();
            }
        });
    }

    private void round() {
        connect();
        later(random.nextLong(CONNECT_NS), () -> {
            if (!isLeaving() && !world.isHealed()) {
                send(world.drawVersion());
            }
        });
    }

    /** Names itself to each server that is not attached. */
    void connect() {
        for (String server : world.servers()) {
            if (!isAttached(server)) {
                String ticket = node.process() + "/" + server + "/" + serverByTicket.size();
                serverByTicket.put(ticket, server);
                world.call(server, each -> each.dial(node.name(), ticket));
            }
        }
    }

    private boolean isAttached(String server) {
        return attached.stream().anyMatch(ticket -> serverByTicket.get(ticket).equals(server));
    }

    /** Sends to all that are attached. Returns the update's id; 0 if none is. */
    long send(long version) {
        List<String> tickets = new ArrayList<>(attached);
        if (tickets.isEmpty()) {
            scheduleRound();
            return 0;
        }
        if (unheard.isEmpty() || world.fault() == EngineFault.MEMORY_CHANGED_EARLY) {
            fill();
        }
        Sending next = new Sending(world.nextUpdateId(), tickets);
        sending = next;
        tickets.forEach(ticket -> unheard.add(new Part(next.id, ticket)));
        trace("sendUpdate", next.id + " version " + version + " to " + tickets);
        byte[] content = bytes.toArray(ValueLayout.JAVA_BYTE);
        node.input(m -> {
            checker.sent(node.process(), next.id, version, content, tickets);
            sender.send(next.id, version, tickets);
        });
        later(shape.landLimitNs(), () -> onLate(next));
        return next.id;
    }

    /** Bytes have not landed in time: the trainer ends, or goes on without the servers that have not got them. */
    private void onLate(Sending late) {
        if (late != sending || !late.landing() || isLeaving() || world.isHealed()) {
            return;
        }
        if (random.nextBoolean()) {
            world.leaveAndReturn(this);
        } else {
            late.stages.replaceAll((ticket, stage) -> stage == Stage.SENT ? Stage.ENDED : stage);
            goOn(late);
        }
    }

    /** Has servers load when no bytes are awaited any more, and begins the next round when all has ended. */
    private void goOn(Sending update) {
        if (update != sending) {
            return;
        }
        if (!update.landing() && !update.loads) {
            update.loads = true;
            List.copyOf(update.stages.keySet()).forEach(ticket -> load(update, ticket));
        }
        if (update.over()) {
            scheduleRound();
        }
    }

    private void load(Sending update, String ticket) {
        if (update.stages.get(ticket) != Stage.LANDED) {
            return;
        }
        update.stages.put(ticket, Stage.LOADING);
        String server = serverByTicket.get(ticket);
        Runnable returned = () -> later(REPORT_NS, () -> end(update, ticket));
        world.call(server, each -> each.load(update.id, returned));
        if (happens(shape.callsTwice())) {
            world.call(server, each -> each.load(update.id, returned));
        }
        later(WeightsSimulation.CALL_LIMIT_NS, () -> end(update, ticket));
    }

    private void end(Sending update, String ticket) {
        if (update.stages.get(ticket) != Stage.ENDED) {
            update.stages.put(ticket, Stage.ENDED);
            goOn(update);
        }
    }

    // ---- events, each taken up by the trainer's own thread a little later

    private void take(Runnable event) {
        node.inNextStep(random, event);
    }

    private void hear(long updateId, String ticket, Stage stage) {
        unheard.remove(new Part(updateId, ticket));
        Sending update = sending;
        if (update != null && update.id == updateId && update.stages.containsKey(ticket)) {
            if (update.stages.get(ticket) != Stage.ENDED) {
                update.stages.put(ticket, stage);
                goOn(update);
            }
        }
    }

    @Override
    public void attached(String ticket, String host) {
        trace("attached", ticket);
        checker.attached(node.process(), ticket);
        take(() -> {
            String server = serverByTicket.get(ticket); // null if the server meant an earlier incarnation
            if (server != null && !isAttached(server)) {
                attached.add(ticket);
            }
        });
    }

    @Override
    public void landed(String ticket, long updateId) {
        trace("senderLanded", updateId + " " + ticket);
        checker.senderLanded(node.process(), ticket, updateId);
        take(() -> hear(updateId, ticket, Stage.LANDED));
    }

    @Override
    public void applied(String ticket, long updateId) {
        trace("senderApplied", updateId + " " + ticket);
        checker.senderApplied(node.process(), ticket, updateId);
        take(() -> hear(updateId, ticket, Stage.ENDED));
    }

    @Override
    public void refused(String ticket, long updateId, String reason) {
        trace("senderRefused", updateId + " " + ticket + ": " + reason);
        checker.senderRefused(node.process(), ticket, updateId, reason);
        world.onSenderEnd(node.process(), reason);
        take(() -> hear(updateId, ticket, Stage.ENDED));
    }

    @Override
    public void lost(String ticket, String reason) {
        trace("senderLost", ticket + ": " + reason);
        checker.senderLost(node.process(), ticket, reason);
        world.onSenderEnd(node.process(), reason);
        take(() -> {
            attached.remove(ticket);
            unheard.removeIf(part -> part.ticket().equals(ticket));
            if (sending != null) {
                hear(sending.id, ticket, Stage.ENDED);
            }
        });
    }

    // ---- what it holds

    @Override
    Map<String, Integer> held() {
        return sender.held();
    }

    @Override
    String busyWith() {
        if (sending == null || sending.over()) {
            return "";
        }
        if (sending.landing()) {
            return sender.held().get("writesInFlight") > 0 ? "WRITING" : "ANNOUNCED";
        }
        return "LANDED";
    }

    @Override
    String unended() {
        return unheard.isEmpty() && (sending == null || sending.over())
                ? ""
                : node.process() + " sends " + sending.id + " " + sending.stages + " and has not heard of " + unheard
                        + " and holds " + held();
    }
}
