package io.kvmessenger.testkit.sim.check;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.weights.wire.WeightsFrame;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Checks weights: what a server's ranks load is one announced version, whole and right, and newer than what they serve;
 * no byte lands but of the update that has the landing; each update ends once at each side, with a reason, and the two
 * sides do not contradict each other; equal bytes, and no others, have one digest; a trainer's memory is read no more
 * after an event; nothing is held at rest.
 */
public final class WeightsChecker implements WorldListener {
    /** Receives each frame of weights. */
    public interface FrameWatch {
        void sent(String from, String to, WeightsFrame frame);
    }

    private final boolean portsThrow;
    private final boolean damaged;
    private final FrameWatch watch;
    private final Map<Long, SentUpdate> sent = new HashMap<>();
    private final Map<String, ServedWeights> servers = new HashMap<>();
    /** The server process that has dialled with a ticket, and tickets of servers that take nothing. */
    private final Map<String, String> serverByTicket = new HashMap<>();

    private final Set<String> refusedTickets = new HashSet<>();
    private final Set<String> ofOtherModel = new HashSet<>();
    /** By trainer and server: the update whose Ground was delivered last. */
    private final Map<String, SentUpdate> leaving = new HashMap<>();

    /** By update and server: the session of that part. */
    private final Map<String, String> ticketOfPart = new HashMap<>();
    /** Tickets of sessions that have ended at their server. */
    private final Set<String> endedTickets = new HashSet<>();

    private final Map<Long, SentUpdate> updateOfWrite = new HashMap<>();
    /** By ticket and update: whether the trainer has heard that it landed; until it has ended there. */
    private final Map<Part, Boolean> open = new LinkedHashMap<>();
    /** Parts that had landed when the next update was sent: their ends may come yet, and need not. */
    private final Set<Part> passed = new HashSet<>();
    /** By update and server: no write may read the trainer's memory any more. */
    private final Set<String> unread = new HashSet<>();

    private final Map<ByteString, ByteString> contentOfDigest = new HashMap<>();
    private final Map<ByteString, ByteString> digestOfContent = new HashMap<>();

    private Violation first;

    private record Part(long updateId, String ticket) {}

    /**
     * @param portsThrow whether calls of ports fail
     * @param damaged whether writes arrive with bits flipped
     */
    public WeightsChecker(boolean portsThrow, boolean damaged, FrameWatch watch) {
        this.portsThrow = portsThrow;
        this.damaged = damaged;
        this.watch = watch;
    }

    /** The code under test may catch a violation, and end a link for it: it is thrown again at the next event. */
    private void check(Runnable rule) {
        throwFirst();
        try {
            rule.run();
        } catch (Violation found) {
            first = found;
            throw found;
        }
    }

    private void throwFirst() {
        if (first != null) {
            throw first;
        }
    }

    private void demand(boolean holds, String sentence) {
        check(() -> {
            if (!holds) {
                throw new Violation("Weights", sentence);
            }
        });
    }

    private SentUpdate update(long id) {
        demand(sent.containsKey(id), "update " + id + " was never sent");
        return sent.get(id);
    }

    // ---- trainers

    public void startedWithOtherModel(String process) {
        ofOtherModel.add(process);
    }

    public void sent(String process, long updateId, long version, byte[] content, List<String> tickets) {
        throwFirst();
        sent.put(updateId, new SentUpdate(updateId, version, process, content));
        for (String ticket : tickets) {
            open.entrySet().stream()
                    .filter(part -> part.getKey().ticket().equals(ticket) && part.getValue())
                    .forEach(part -> passed.add(part.getKey()));
            open.keySet().removeAll(passed);
            open.put(new Part(updateId, ticket), false);
            ticketOfPart.put(updateId + " " + serverByTicket.get(ticket), ticket);
        }
    }

    public void attached(String process, String ticket) {
        demand(!ofOtherModel.contains(process), process + " has another model and was attached by " + ticket);
        demand(!refusedTickets.contains(ticket), process + " was attached by " + ticket + ", which takes nothing");
    }

    public void senderLanded(String process, String ticket, long updateId) {
        SentUpdate update = update(updateId);
        demand(
                Boolean.FALSE.equals(open.get(new Part(updateId, ticket))),
                process + " heard that " + update + " has landed at " + ticket + ", out of order");
        demand(server(ticket).hasLanded(update), process + " heard that " + update + " has landed, and it has not");
        open.put(new Part(updateId, ticket), true);
        closeMemory(update, ticket);
    }

    public void senderApplied(String process, String ticket, long updateId) {
        SentUpdate update = update(updateId);
        end(process, ticket, update, "is applied");
        demand(server(ticket).hasLoaded(update), process + " heard that " + update + " is applied, and it is not");
    }

    public void senderRefused(String process, String ticket, long updateId, String reason) {
        demand(!reason.isBlank(), process + " heard no reason why update " + updateId + " is refused");
        if (updateId == 0) {
            demand(refusedTickets.contains(ticket), process + " heard that " + ticket + " takes nothing, and it does");
            return;
        }
        SentUpdate update = update(updateId);
        end(process, ticket, update, "is refused");
        check(() -> server(ticket).onHeardRefused(update));
    }

    public void senderLost(String process, String ticket, String reason) {
        demand(!reason.isBlank(), process + " heard no reason why " + ticket + " is lost");
        for (Part part : List.copyOf(open.keySet())) {
            if (part.ticket().equals(ticket)) {
                end(process, ticket, update(part.updateId()), "is lost");
            }
        }
        passed.removeIf(part -> part.ticket().equals(ticket));
    }

    private void end(String process, String ticket, SentUpdate update, String what) {
        Part part = new Part(update.id(), ticket);
        demand(
                open.remove(part) != null || passed.remove(part),
                process + " heard that " + update + " " + what + " at " + ticket + ", where it had ended");
        closeMemory(update, ticket);
    }

    private ServedWeights server(String ticket) {
        return servers.get(serverByTicket.get(ticket));
    }

    private void closeMemory(SentUpdate update, String ticket) {
        unread.add(update.id() + " " + serverByTicket.get(ticket));
    }

    // ---- servers

    public void serverStarted(String process, int rankCount, MemorySegment landing) {
        servers.put(process, new ServedWeights(process, rankCount, landing));
    }

    public void dialled(String process, String ticket, boolean refuses) {
        serverByTicket.put(ticket, process);
        if (refuses) {
            refusedTickets.add(ticket);
        }
    }

    public void landed(String process, long updateId, long version, ByteString digest) {
        SentUpdate update = update(updateId);
        demand(update.version() == version, process + " says version " + version + " of " + update);
        onNamed(process, update, digest);
        check(() -> servers.get(process).onLanded(update));
    }

    /** Engines take weights of one digest for the same. */
    private void onNamed(String process, SentUpdate update, ByteString digest) {
        ByteString content = ByteString.copyFrom(update.content());
        ByteString other = contentOfDigest.putIfAbsent(digest, content);
        demand(
                other == null || other.equals(content),
                process + " says that " + update + " has the digest of other bytes, which landed before");
        ByteString before = digestOfContent.putIfAbsent(content, digest);
        demand(
                before == null || before.equals(digest),
                process + " says that " + update + " has another digest than the same bytes had before");
    }

    public void decided(String process, long updateId, String reason) {
        if (reason.isEmpty()) {
            check(() -> servers.get(process).onPermitted(update(updateId)));
        }
    }

    public void rankBegins(String process, int rank, long updateId) {
        check(() -> servers.get(process).onRankBegins(rank, update(updateId)));
    }

    public void rankLoaded(String process, int rank, long updateId, byte[] bytes) {
        check(() -> servers.get(process).onRankLoaded(rank, update(updateId), bytes));
    }

    public void loaded(String process, long updateId) {
        check(() -> servers.get(process).onLoaded(update(updateId)));
    }

    public void loadEnded(String process) {
        check(() -> servers.get(process).onLoadEnded());
    }

    public void updateEnded(String process) {
        check(() -> servers.get(process).onEnd());
    }

    public void sessionEnded(String process, String ticket, String reason) {
        demand(!reason.isBlank(), process + " heard no reason why " + ticket + " has ended");
        endedTickets.add(ticket);
    }

    public long servesId(String process) {
        return servers.get(process).servesId();
    }

    // ---- network and fabric

    private static WeightsFrame weights(ControlFrame frame) {
        try {
            return WeightsFrame.parseFrom(frame.getSubject().getPayload());
        } catch (InvalidProtocolBufferException e) {
            throw new AssertionError("a frame that is none of weights", e);
        }
    }

    @Override
    public void frameSent(String from, String to, ControlFrame frame) {
        if (!frame.hasSubject()) {
            return;
        }
        WeightsFrame body = weights(frame);
        check(() -> {
            switch (body.getBodyCase()) {
                case GROUND -> onGround(from, update(body.getGround().getUpdateId()), to);
                case LANDED ->
                    servers.get(from).onLanded(update(body.getLanded().getUpdateId()));
                case APPLIED -> {
                    SentUpdate update = update(body.getApplied().getUpdateId());
                    demand(servers.get(from).hasLoaded(update), from + " reports " + update + " and has not loaded it");
                }
                case REFUSED ->
                    onRefused(
                            from,
                            update(body.getRefused().getUpdateId()),
                            body.getRefused().getSentence());
                case ANNOUNCE, ABANDON, BODY_NOT_SET -> {}
            }
        });
        watch.sent(from, to, body);
    }

    private void onGround(String process, SentUpdate update, String trainer) {
        SentUpdate unloaded = servers.get(process).unloaded();
        demand(
                unloaded == null
                        || unloaded.trainer().equals(trainer)
                        || endedTickets.contains(ticketOfPart.get(unloaded.id() + " " + process)),
                process + " gave its landing to " + update + ", and the trainer of " + unloaded
                        + ", which has landed, is there");
        servers.get(process).onGround(update, trainer);
    }

    private void onRefused(String process, SentUpdate update, String sentence) {
        demand(
                damaged || !sentence.contains("another digest"),
                process + " found damage in " + update + ", and nothing was damaged");
        servers.get(process).onRefused(update);
    }

    @Override
    public void frameDelivered(String from, String to, ControlFrame frame) {
        if (!frame.hasSubject()) {
            return;
        }
        WeightsFrame body = weights(frame);
        if (body.hasGround()) {
            leaving.put(to + " " + from, sent.get(body.getGround().getUpdateId()));
        } else if (body.hasAnnounce()) {
            servers.get(to).onAnnounce();
        }
    }

    @Override
    public void writeSubmitted(PageWrite write) {
        SentUpdate update = leaving.get(write.source() + " " + write.target());
        demand(update != null, write.source() + " wrote to " + write.target() + ", which had not given its landing");
        updateOfWrite.put(write.id(), update);
    }

    @Override
    public void sourceRead(PageWrite write) {
        SentUpdate update = updateOfWrite.get(write.id());
        demand(
                !unread.contains(update.id() + " " + write.target()),
                write.source() + " had heard the end of " + update + " at " + write.target()
                        + ", and a write still read its memory");
    }

    @Override
    public void landed(PageWrite write, int fromByte, int toByte) {
        SentUpdate update = updateOfWrite.get(write.id());
        check(() -> servers.get(write.target()).onBytes(update));
    }

    @Override
    public void faultContained(String process) {
        if (!portsThrow && first == null) {
            first = new Violation("Weights", process + " met an exception"); // thrown when the trace has its reason
        }
    }

    @Override
    public void processDied(String process) {
        open.keySet().removeIf(part -> sent.get(part.updateId()).trainer().equals(process));
    }

    // ---- the end

    public void trainerAtRest(String process) {
        for (Map.Entry<Part, Boolean> part : new ArrayList<>(open.entrySet())) {
            SentUpdate update = sent.get(part.getKey().updateId());
            boolean kept = part.getValue() && server(part.getKey().ticket()).keeps(update);
            demand(
                    kept || !update.trainer().equals(process),
                    process + " has not heard how " + update + " ended at "
                            + part.getKey().ticket());
        }
    }

    public void serverAtRest(String process, boolean keepsUnloaded) {
        check(() -> servers.get(process).atRest(keepsUnloaded));
    }

    /** @param held what the subject holds for updates */
    public void atRest(String process, Map<String, Integer> held, FabricHoldings fabric) {
        demand(held.values().stream().noneMatch(count -> count > 0), process + " is at rest and holds " + held);
        demand(
                fabric.windowsOpen() + fabric.allowances() + fabric.writesInFlight() == 0,
                process + " is at rest and its transfer engine holds " + fabric);
        demand(
                fabric.liveAdmissions() + fabric.livePeers() <= fabric.sessions(),
                process + " is at rest with more data paths than links: " + fabric);
    }
}
