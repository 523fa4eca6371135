package io.kvmessenger.testkit.echo;

import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.AttachWire;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The listener's side of an echo: writes what an ask is for. A write that
 * fails ends its session, so that the asker learns of it.
 *
 * <p>Owned by the messenger's thread.
 */
final class EchoAnswers {
    private final Region region;
    private final Sessions sessions;
    private final TransferEngine transfer;
    private final NanoClock clock;
    private final Map<Peer, EchoSession> byPeer = new LinkedHashMap<>();
    /** Writes in flight, by cookie. */
    private final Map<Long, Written> writing = new LinkedHashMap<>();

    private long lastCookie;

    private record Written(Peer peer, RemoteWindow window) {}

    EchoAnswers(Region region, Sessions sessions, TransferEngine transfer, NanoClock clock) {
        this.region = region;
        this.sessions = sessions;
        this.transfer = transfer;
        this.clock = clock;
    }

    void attached(EchoSession session, Attach attach) {
        session.target = EchoFrames.region(attach.getSubject());
        session.peer = transfer.connect(
                AttachWire.address(attach),
                session.concealed(attach.getAdmissionKey()).toByteArray(),
                session.peerName());
        byPeer.put(session.peer, session);
    }

    void onFrame(EchoSession session, ControlFrame frame) {
        if (!frame.hasSubject() || !session.inbound) {
            sessions.end(session, session.peerName() + " sent " + frame.getBodyCase() + ", expected an ask");
            return;
        }
        EchoFrames.Ask ask = EchoFrames.ask(frame);
        long lengthMax = Math.min(EchoSubject.halfBytes(region.descriptor()), EchoSubject.halfBytes(session.target));
        if (ask.lengthBytes() > lengthMax) {
            sessions.end(
                    session,
                    session.peerName() + " asked for " + ask.lengthBytes() + " bytes, expected at most the " + lengthMax
                            + " of half the shorter region: ask for less");
            return;
        }
        session.asked.add(ask);
        writeAsked(session);
    }

    /** Writes what could not be written yet. Returns how many writes it began. */
    int writeAll() {
        int begun = 0;
        for (EchoSession session : byPeer.values().toArray(EchoSession[]::new)) { // a refused write ends its session
            begun += writeAsked(session);
        }
        return begun;
    }

    private int writeAsked(EchoSession session) {
        int begun = 0;
        while (session.peerReady
                && session.takesWork()
                && !session.asked.isEmpty()
                && write(session, session.asked.peek())) {
            session.asked.poll();
            begun++;
        }
        return begun;
    }

    /** Returns false if it has to be tried again. */
    private boolean write(EchoSession session, EchoFrames.Ask ask) {
        Peer peer = session.peer;
        RemoteWindow window =
                transfer.allow(peer, ask.imm(), EchoSubject.answerArea(session.target, ask.lengthBytes()));
        int result = TransferEngine.BACK_PRESSURE;
        try {
            result = submit(session, ask, window);
        } finally {
            if (result != TransferEngine.ACCEPTED) {
                transfer.disallow(peer, window);
            }
        }
        if (result == TransferEngine.REFUSED) {
            sessions.end(
                    session,
                    "ask " + ask.id() + " of " + session.peerName() + " cannot be answered: " + transfer.refusal());
        }
        return result != TransferEngine.BACK_PRESSURE;
    }

    private int submit(EchoSession session, EchoFrames.Ask ask, RemoteWindow window) {
        long cookie = ++lastCookie;
        SingleWrite write = new SingleWrite(
                region, 0, session.target, EchoSubject.halfBytes(session.target), ask.lengthBytes(), window, 1);
        int result = transfer.submit(session.peer, write, cookie);
        if (result == TransferEngine.ACCEPTED) {
            writing.put(cookie, new Written(session.peer, window));
        }
        return result;
    }

    void onWriteCompleted(long cookie) {
        Written done = writing.remove(cookie);
        if (byPeer.containsKey(done.peer())) {
            transfer.disallow(done.peer(), done.window());
        }
    }

    void onWriteFailed(long cookie, TransferFault fault, String detail) {
        EchoSession session = byPeer.get(writing.get(cookie).peer());
        onWriteCompleted(cookie);
        if (session != null) {
            end(session, fault, "a write to " + session.peerName() + " failed (" + fault + "): " + detail);
        }
    }

    void onPeerReady(Peer peer) {
        EchoSession session = byPeer.get(peer);
        if (session != null) {
            session.peerReady = true;
            writeAsked(session);
        }
    }

    void onPeerLost(Peer peer, TransferFault fault, String detail) {
        EchoSession session = byPeer.remove(peer);
        if (session != null) {
            session.peer = null;
            session.peerReady = false;
            end(session, fault, "the data paths to " + session.peerName() + " ended (" + fault + "): " + detail);
        }
    }

    private void end(EchoSession session, TransferFault fault, String reason) {
        if (fault.isByPeer()) {
            sessions.endUnlessExplained(session, reason, clock.nowNs());
        } else {
            sessions.end(session, reason);
        }
    }

    void onEnded(EchoSession session) {
        session.asked.clear();
        if (session.peer != null) {
            byPeer.remove(session.peer);
            transfer.disconnect(session.peer);
            session.peer = null;
            session.peerReady = false;
        }
    }

    boolean waits() {
        return byPeer.values().stream().anyMatch(session -> session.peerReady && !session.asked.isEmpty());
    }

    int inFlightCount() {
        return writing.size();
    }

    int waitingCount() {
        return byPeer.values().stream()
                .mapToInt(session -> session.asked.size())
                .sum();
    }
}
