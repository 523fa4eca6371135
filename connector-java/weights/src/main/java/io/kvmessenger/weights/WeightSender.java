package io.kvmessenger.weights;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.messenger.session.PeerText;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.AttachWire;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.weights.wire.Abandon;
import io.kvmessenger.weights.wire.Announce;
import io.kvmessenger.weights.wire.Ground;
import io.kvmessenger.weights.wire.LandingTarget;
import io.kvmessenger.weights.wire.WeightsFrame;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The trainer's side of weights: hosts dial it; it writes its memory into their landings, one update at a time. A host
 * that is lost leaves the update, and the others go on.
 *
 * <p>Owned by the messenger's thread. The engine keeps the memory unchanged from {@link #send} until each host's event.
 */
public final class WeightSender extends WeightsSubject {
    private static final long RETRY_NS = 1_000_000;
    private static final long REST_NS = 1_000_000_000;
    private static final int PIECES_PER_CYCLE = 8;
    /** Posted and not completed for one host: more would only be memory. */
    private static final int WRITES_IN_FLIGHT_MAX = 16;

    /** In place of an update's id: the server refuses all. */
    private static final long NO_UPDATE = 0;

    private final Region region;
    private final LandingParts parts;
    private final SubjectPorts ports;
    private final SenderEvents events;
    private final Map<Peer, SenderSession> byPeer = new LinkedHashMap<>();
    /** Hosts that can be written to. */
    private final Map<String, SenderSession> byTicket = new LinkedHashMap<>();
    /** Writes in flight, by cookie. */
    private final Map<Long, Posted> posted = new HashMap<>();

    private long lastCookie;
    /** What is announced as soon as its digest is known; null while there is nothing. */
    private Outgoing outgoing;
    /** Why no update is begun; empty while some may be. */
    private String closedReason = "";

    private record Posted(Peer peer, Delivery delivery) {}

    private record Outgoing(long updateId, long version, List<String> tickets, ContentDigest digest) {}

    public WeightSender(
            ByteString manifestDigest, Region region, LandingParts parts, SubjectPorts ports, SenderEvents events) {
        super(manifestDigest);
        this.region = region;
        this.parts = parts;
        this.ports = ports;
        this.events = events;
    }

    /** Writes the memory, as it is now, to these hosts; one event for each follows. */
    public void send(long updateId, long version, List<String> tickets) {
        boolean underWay = outgoing != null || heldDeliveries() > 0 || !posted.isEmpty();
        String refusal = underWay ? "another update is under way" : closedReason;
        if (!refusal.isEmpty()) {
            tickets.forEach(ticket -> events.refused(ticket, updateId, refusal));
            return;
        }
        ContentDigest digest = new ContentDigest(region.hostBytes(), parts.pieceBytes());
        outgoing = new Outgoing(updateId, version, new ArrayList<>(tickets), digest);
    }

    // ---- sessions

    @Override
    public Session accept(long link, String peerAddress) {
        return new SenderSession(this, link, peerAddress);
    }

    void attached(SenderSession session, Attach attach) {
        LandingTarget target = WeightsFrames.target(attach);
        session.ticket = target.getTicket();
        session.landing = WeightsFrames.region(target);
        if (!target.getRefusal().isEmpty()) {
            events.refused(session.ticket, NO_UPDATE, PeerText.oneLine(target.getRefusal()));
            end(session, session.peerName() + " takes no weights of this sender");
            return;
        }
        if (session.landing.lengthBytes() != region.descriptor().lengthBytes()) {
            ports.sessions()
                    .end(
                            session,
                            "the landing of " + session.peerName() + " has " + session.landing.lengthBytes()
                                    + " bytes, expected " + region.descriptor().lengthBytes());
            return;
        }
        session.peer = ports.transfer()
                .connect(
                        AttachWire.address(attach),
                        session.concealed(attach.getAdmissionKey()).toByteArray(),
                        session.peerName());
        byPeer.put(session.peer, session);
    }

    void onFrame(SenderSession session, ControlFrame frame) {
        if (!frame.hasSubject()) {
            end(session, session.peerName() + " sent " + frame.getBodyCase() + ", expected a frame of weights");
            return;
        }
        WeightsFrame weights = WeightsFrames.decode(frame);
        Delivery delivery = session.delivery;
        switch (weights.getBodyCase()) {
            case GROUND -> {
                if (isFor(delivery, weights.getGround().getUpdateId(), DeliveryState.ANNOUNCED)) {
                    onGround(session, weights.getGround());
                }
            }
            case LANDED -> {
                if (isFor(delivery, weights.getLanded().getUpdateId(), DeliveryState.WRITING)) {
                    become(session, DeliveryState.LANDED, () -> events.landed(session.ticket, delivery.updateId));
                }
            }
            case APPLIED -> {
                if (isFor(delivery, weights.getApplied().getUpdateId(), DeliveryState.LANDED)) {
                    become(session, DeliveryState.APPLIED, () -> events.applied(session.ticket, delivery.updateId));
                }
            }
            case REFUSED ->
                onRefused(
                        session,
                        weights.getRefused().getUpdateId(),
                        weights.getRefused().getSentence());
            case ANNOUNCE, ABANDON, BODY_NOT_SET ->
                end(session, session.peerName() + " sent " + weights.getBodyCase() + ", which only a sender sends");
        }
    }

    /** Frames about another update are late answers, which mean nothing any more. */
    private static boolean isFor(Delivery delivery, long updateId, DeliveryState state) {
        return delivery != null && delivery.updateId == updateId && delivery.state() == state;
    }

    /** Nothing is written to the host from now on; what the engine hears of it waits for the writes in flight. */
    private void become(SenderSession session, DeliveryState next, Runnable reported) {
        Delivery delivery = session.delivery;
        if (delivery.window != null && session.peer != null) {
            ports.transfer().disallow(session.peer, delivery.window);
        }
        delivery.window = null;
        delivery.become(next, reported);
    }

    private void onGround(SenderSession session, Ground ground) {
        if (session.peer == null) {
            return; // its data paths have ended, and its session waits for the reason
        }
        session.delivery.window = ports.transfer()
                .allow(session.peer, ground.getImm(), LandingParts.area(session.landing), TrafficClass.BULK);
        session.delivery.become(DeliveryState.WRITING);
        write(session);
    }

    private void onRefused(SenderSession session, long updateId, String sentence) {
        Delivery delivery = session.delivery;
        if (delivery != null
                && delivery.updateId == updateId
                && !delivery.state().last()) {
            become(
                    session,
                    DeliveryState.ENDED,
                    () -> events.refused(session.ticket, updateId, PeerText.oneLine(sentence)));
        }
    }

    void onEnded(SenderSession session, String reason) {
        boolean replaced = byTicket.containsKey(session.ticket) && byTicket.get(session.ticket) != session;
        byTicket.remove(session.ticket, session);
        if (outgoing != null && !replaced) {
            outgoing.tickets().remove(session.ticket); // its loss, which is reported, is this update's end there
        }
        Peer peer = session.peer;
        if (peer != null) {
            byPeer.remove(peer);
            session.peer = null;
            ports.transfer().disconnect(peer);
        }
        Delivery delivery = session.delivery;
        Runnable lost = () -> events.lost(session.ticket, reason);
        if (replaced && (delivery == null || delivery.state().last())) {
            return; // the server is attached
        }
        if (delivery == null) {
            lost.run();
        } else if (delivery.state().last()) {
            delivery.report(lost);
        } else {
            become(session, DeliveryState.ENDED, lost);
        }
    }

    private void end(SenderSession session, String reason) {
        ports.sessions().end(session, reason);
    }

    // ---- writes

    private int announce() {
        if (outgoing == null) {
            return 0;
        }
        int work = outgoing.digest().advance(PIECES_PER_CYCLE);
        if (outgoing.digest().finished()) {
            Outgoing due = outgoing;
            outgoing = null;
            ByteString digest = due.digest().value();
            due.tickets().forEach(ticket -> announce(due, ticket, digest));
        }
        return work;
    }

    private void announce(Outgoing due, String ticket, ByteString digest) {
        SenderSession session = byTicket.get(ticket);
        if (session == null || !session.takesWork()) {
            events.refused(ticket, due.updateId(), "its session had ended before it was written to");
            return;
        }
        session.delivery = new Delivery(due.updateId());
        Announce.Builder announce = Announce.newBuilder()
                .setUpdateId(due.updateId())
                .setVersion(due.version())
                .setWriteCount(writeCount())
                .setContentDigest(digest);
        ports.sessions()
                .send(session, WeightsFrames.encode(WeightsFrame.newBuilder().setAnnounce(announce)));
    }

    private long writeCount() {
        return parts.writeCount(region.descriptor().lengthBytes());
    }

    private int writeAll() {
        int begun = 0;
        for (SenderSession session :
                byPeer.values().toArray(SenderSession[]::new)) { // a refused write ends its session
            begun += write(session);
        }
        return begun;
    }

    private int write(SenderSession session) {
        Delivery delivery = session.delivery;
        int begun = 0;
        while (delivery != null
                && delivery.state() == DeliveryState.WRITING
                && session.takesWork()
                && delivery.inFlightCount() < WRITES_IN_FLIGHT_MAX
                && delivery.postedCount() < writeCount()
                && post(session, delivery)) {
            begun++;
        }
        return begun;
    }

    /** Returns whether the write was accepted. */
    private boolean post(SenderSession session, Delivery delivery) {
        long write = delivery.postedCount();
        long offsetBytes = parts.offsetBytes(write);
        long lengthBytes = parts.lengthBytes(write, region.descriptor().lengthBytes());
        SingleWrite request =
                new SingleWrite(region, offsetBytes, session.landing, offsetBytes, lengthBytes, delivery.window, 1);
        int result;
        try {
            result = ports.transfer().submit(session.peer, request, lastCookie + 1);
        } catch (RuntimeException | Error bug) {
            end(session, "a bug in the messenger was met by a write to " + session.peerName() + ": " + bug);
            throw bug; // the other hosts are written to in the next cycle
        }
        if (result == TransferEngine.ACCEPTED) {
            posted.put(++lastCookie, new Posted(session.peer, delivery));
            delivery.onPosted();
        } else if (result == TransferEngine.REFUSED) {
            end(
                    session,
                    session.peerName() + " cannot be written to: "
                            + ports.transfer().refusal());
        }
        return result == TransferEngine.ACCEPTED;
    }

    void onWriteCompleted(long cookie) {
        Posted done = posted.remove(cookie);
        done.delivery().onWriteEnded();
        SenderSession session = byPeer.get(done.peer());
        if (session != null) {
            write(session);
        }
    }

    void onWriteFailed(long cookie, TransferFault fault, String detail) {
        Posted failed = posted.remove(cookie);
        failed.delivery().onWriteEnded();
        endFor(byPeer.get(failed.peer()), fault, "a write failed", detail);
    }

    void onPeerReady(Peer peer) {
        SenderSession session = byPeer.get(peer);
        if (session != null && session.ready()) {
            SenderSession earlier = byTicket.put(session.ticket, session);
            if (earlier != null && earlier != session) {
                end(earlier, session.peerName() + " has dialled this sender again");
            }
            events.attached(session.ticket, session.peerName());
        }
    }

    void onPeerLost(Peer peer, TransferFault fault, String detail) {
        SenderSession session = byPeer.remove(peer);
        if (session != null) {
            session.peer = null;
            byTicket.remove(session.ticket, session);
        }
        endFor(session, fault, "the data paths ended", detail);
    }

    private void endFor(SenderSession session, TransferFault fault, String what, String detail) {
        if (session == null) {
            return;
        }
        String reason = session.peerName() + ": " + what + " (" + fault + "): " + detail;
        if (fault.isByPeer()) {
            ports.sessions().endUnlessExplained(session, reason, ports.clock().nowNs());
        } else {
            end(session, reason);
        }
    }

    // ---- the duty cycle

    @Override
    public List<Duty> duties() {
        return List.of(nowNs -> announce(), nowNs -> writeAll());
    }

    @Override
    public CompletionHandler completions() {
        return new SenderCompletions(this);
    }

    @Override
    public long nextDeadlineNs(long nowNs) {
        boolean writing = byPeer.values().stream()
                .anyMatch(session -> session.delivery != null && session.delivery.state() == DeliveryState.WRITING);
        return nowNs + (writing ? RETRY_NS : REST_NS);
    }

    /**
     * Posts no more; a host that has all may still load it. Hosts that have part of it get its count when the last of it
     * has completed: then their landing is free.
     */
    @Override
    public void shutDown(String reason) {
        closedReason = reason;
        refuseOutgoing(reason);
        for (SenderSession session : List.copyOf(byPeer.values())) {
            Delivery delivery = session.delivery;
            if (delivery != null && delivery.state().writes()) {
                boolean writing = delivery.state() == DeliveryState.WRITING;
                become(session, DeliveryState.ENDED, () -> {
                    if (writing) {
                        abandon(session, delivery);
                    }
                    events.refused(session.ticket, delivery.updateId, reason);
                });
            }
        }
    }

    /** No byte of it has left, and none will. */
    private void refuseOutgoing(String reason) {
        Outgoing refused = outgoing;
        outgoing = null;
        if (refused != null) {
            refused.tickets().forEach(ticket -> events.refused(ticket, refused.updateId(), reason));
        }
    }

    private void abandon(SenderSession session, Delivery delivery) {
        if (session.ready()) {
            Abandon.Builder abandon =
                    Abandon.newBuilder().setUpdateId(delivery.updateId).setPostedCount(delivery.postedCount());
            ports.sessions()
                    .send(
                            session,
                            WeightsFrames.encode(WeightsFrame.newBuilder().setAbandon(abandon)));
        }
    }

    @Override
    public boolean finished() {
        return posted.isEmpty();
    }

    @Override
    public void onTransferEnded(String reason) {
        List<Posted> unended = List.copyOf(posted.values());
        posted.clear();
        unended.forEach(write -> write.delivery().onWriteEnded()); // no completion reports them any more
    }

    @Override
    public void publishGauges() {}

    private int heldDeliveries() {
        return (int) byPeer.values().stream()
                .filter(session -> session.delivery != null
                        && (session.delivery.state().writes() || session.delivery.inFlightCount() > 0))
                .count();
    }

    @Override
    public Map<String, Integer> held() {
        return Map.of("updatesLeaving", heldDeliveries() + (outgoing == null ? 0 : 1), "writesInFlight", posted.size());
    }
}
