package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.KvPeer;
import io.kvmessenger.messenger.kv.KvSession;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.AttachWire;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.messenger.wire.PeerContextRow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import java.util.HashMap;
import java.util.Map;

/**
 * A prefiller's sessions with decoders: their links, their data paths, and which part of the prefiller a frame is for.
 *
 * <p>Owned by the messenger's thread. It decides nothing about transfers but that those to a lost decoder stop.
 */
final class AttachedDecoders {
    /** Sent to the decoder too: data paths are dialled by the prefiller, to the address that the decoder gives. */
    private static final String UNREACHABLE_REMEDY =
            "; look at the decoder's listen_host, advertise_host and data_port, and at the firewall between: the"
                    + " prefiller dials the decoder";

    private final KvSession.Side own;
    private final Parts parts;
    private final Sessions sessions;
    private final TransferEngine transfer;
    private final NanoClock clock;
    private final Tally tally;
    private final Map<Peer, DecoderSession> byPeer = new HashMap<>();

    /** The parts of the prefiller that events of sessions reach. */
    record Parts(DecoderFrames frames, Prefills prefills, Deliveries deliveries, LayerWriter writer) {}

    AttachedDecoders(KvSession.Side own, Parts parts, Sessions sessions, TransferEngine transfer, NanoClock clock) {
        this.own = own;
        this.parts = parts;
        this.sessions = sessions;
        this.transfer = transfer;
        this.clock = clock;
        this.tally = own.tally();
    }

    Session accept(long link, String peerAddress) {
        return new DecoderSession(own, link, peerAddress, this);
    }

    void onAttached(DecoderSession session, Attach attach) {
        try {
            KvPeer decoder = session.peerCache();
            decoder.attached(AttachWire.regionsByRank(attach, decoder.geometry()), PeerContextRow.decode(attach));
        } catch (IllegalArgumentException e) {
            tally.add(MessengerMetric.FRAMES_INVALID, 1);
            sessions.end(session, session.peerName() + " attached with " + e.getMessage());
            return;
        }
        session.peer = transfer.connect(
                AttachWire.address(attach),
                session.concealed(attach.getAdmissionKey()).toByteArray(),
                session.peerName());
        byPeer.put(session.peer, session);
    }

    void onFrame(DecoderSession session, ControlFrame frame) {
        long nowNs = clock.nowNs();
        switch (frame.getBodyCase()) {
            case GRANT -> onGrant(session, frame.getGrant(), nowNs);
            case CANCEL -> parts.frames.onCancel(session, frame.getCancel());
            case DECLINE -> parts.frames.onDecline(session, frame.getDecline());
            case ASK -> parts.frames.onAsk(session, frame.getAsk());
            case EXPECT -> parts.frames.onExpect(session, frame.getExpect());
            case REJECTED -> parts.frames.onRejected(frame.getRejected());
            default -> {
                tally.add(MessengerMetric.FRAMES_INVALID, 1);
                sessions.end(session, session.peerName() + " sent " + frame.getBodyCase() + " to a prefiller");
            }
        }
    }

    /** Answers a frame of one transfer that breaks a rule; false if it concerns more than one transfer. */
    boolean survivesBroken(DecoderSession session, ControlFrame frame, String why) {
        if (!InvalidFrames.concernsOneTransfer(frame)) {
            return false;
        }
        InvalidFrames.answer(frame, why).ifPresent(answer -> sessions.send(session, answer));
        return true;
    }

    /** Ends the session if the grant's id is not new: answers to two grants of one id would be ambiguous. */
    private void onGrant(DecoderSession session, Grant grant, long nowNs) {
        if (session.ending()) {
            return; // its answer is the end of the session
        }
        if (session.takesGrant(grant.getGrantId())) {
            parts.frames.onGrant(session, grant, nowNs);
        } else {
            tally.add(MessengerMetric.FRAMES_INVALID, 1);
            sessions.end(
                    session,
                    session.peerName() + " sent a grant with id " + grant.getGrantId()
                            + ", which is not above that of the one before");
        }
    }

    void onPeerReady(Peer peer) {
        DecoderSession session = byPeer.get(peer);
        if (session != null) {
            session.peerReady = true;
            for (Delivery delivery : parts.prefills.deliveriesTo(session)) {
                parts.prefills.touch(delivery.prefill);
                parts.deliveries.advance(delivery);
            }
        }
    }

    /** Whether it is not about an address: no transport of both reaches the memory of both. */
    private static boolean hasRemedy(String detail) {
        return detail.endsWith(TransferOptions.OTHER_TRANSPORT);
    }

    void onPeerLost(Peer peer, TransferFault fault, String detail) {
        DecoderSession session = byPeer.remove(peer);
        if (session == null) {
            return;
        }
        session.peer = null;
        session.peerReady = false;
        String sentence = "the data paths to " + session.peerName() + " ended (" + fault + "): " + detail
                + (fault == TransferFault.UNREACHABLE && !hasRemedy(detail) ? UNREACHABLE_REMEDY : "");
        if (fault.isByPeer()) {
            sessions.endUnlessExplained(session, sentence, clock.nowNs());
        } else {
            stopAll(session, sentence);
            sessions.end(session, sentence);
        }
    }

    /** Whether nothing of the session waits for an answer, is written to it or is kept for it. */
    boolean atRest(DecoderSession session) {
        return parts.frames.atRest(session) && !parts.prefills.anyFor(session);
    }

    void onEnded(DecoderSession session, String reason) {
        stopAll(session, reason);
        parts.frames.onEnded(session, reason);
        parts.writer.forget(session);
        if (session.peer != null) {
            byPeer.remove(session.peer);
            transfer.disconnect(session.peer);
            session.peer = null;
            session.peerReady = false;
        }
    }

    /** Stops what the decoder has not been sent; it is told so while its link is open. */
    void stopAll(DecoderSession session, String sentence) {
        for (Delivery delivery : parts.prefills.deliveriesTo(session)) {
            if (!delivery.sent() && !delivery.awaitsOnlyCompletions()) {
                parts.deliveries.stop(delivery, Reason.PATH_LOST, sentence);
                parts.deliveries.settle(delivery);
            }
        }
    }
}
