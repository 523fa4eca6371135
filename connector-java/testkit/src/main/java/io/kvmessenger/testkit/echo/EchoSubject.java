package io.kvmessenger.testkit.echo;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.ServedSubject;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.AttachWire;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/**
 * The smallest subject that moves bytes: a dialler asks, the listener writes the beginning of its region to the
 * beginning of the dialler's, and each ask ends with one event. It has no KV, and no part of the KV halves.
 *
 * <p>Owned by the messenger's thread. Events are {@code arrived ID} and {@code failed ID: REASON}; after either nothing
 * writes to the region for that ask.
 */
public final class EchoSubject implements ServedSubject {
    public static final String KIND = "echo";

    private static final Roles ROLES = new Roles("echoer", "asker");

    private final String word;
    private final Region region;
    private final Sessions sessions;
    private final TransferEngine transfer;
    private final Consumer<String> events;
    private final Map<Long, Asked> open = new HashMap<>();
    private final Map<Integer, EchoSession> byAdmission = new HashMap<>();
    private final Map<Peer, EchoSession> byPeer = new HashMap<>();
    /** Windows of writes in flight, by cookie. */
    private final Map<Long, Written> writing = new HashMap<>();

    private long lastCookie;
    private String closedReason = "";

    /** An ask that has not ended. */
    static final class Asked {
        final long id;
        final int lengthBytes;
        final EchoSession session;
        /** Null before the session is ready. */
        ImmWindow window;

        Asked(long id, int lengthBytes, EchoSession session) {
            this.id = id;
            this.lengthBytes = lengthBytes;
            this.session = session;
        }
    }

    private record Written(Peer peer, RemoteWindow window) {}

    /** @param word that both sides must have: the description of the subject */
    public EchoSubject(
            String word, Region region, Sessions sessions, TransferEngine transfer, Consumer<String> events) {
        this.word = word;
        this.region = region;
        this.sessions = sessions;
        this.transfer = transfer;
        this.events = events;
    }

    /** Asks the messenger at an address, over a session of its own. */
    public void ask(long id, String host, int port, int lengthBytes, long nowNs) {
        if (!closedReason.isEmpty()) {
            events.accept("failed " + id + ": " + closedReason);
            return;
        }
        EchoSession session = sessions.dial(
                host, port, (link, peerAddress) -> new EchoSession(this, link, false, peerAddress), nowNs);
        Asked asked = new Asked(id, lengthBytes, session);
        open.put(id, asked);
        session.waiting.add(asked);
    }

    // ---- dialler

    void admit(EchoSession session, Attach.Builder attach) {
        session.admission = transfer.admit(session.peerName());
        byAdmission.put(session.admission.id(), session);
        ByteString key = session.concealed(ByteString.copyFrom(session.admission.key()));
        AttachWire.encode(attach, transfer.address(), key, List.of());
        attach.setSubject(EchoFrames.encode(region.descriptor()));
    }

    void onReady(EchoSession session) {
        for (Asked asked : session.waiting) {
            asked.window = transfer.openWindow(
                    session.admission, beginning(region.descriptor(), asked.lengthBytes), 1, asked.id);
            sessions.send(
                    session, EchoFrames.encode(new EchoFrames.Ask(asked.id, asked.window.imm(), asked.lengthBytes)));
        }
        session.waiting.clear();
    }

    void onEnded(EchoSession session, String reason) {
        if (session.peer != null) {
            byPeer.remove(session.peer);
            transfer.disconnect(session.peer);
            session.peer = null;
        }
        if (session.admission == null) {
            failAll(session, reason);
        } else if (byAdmission.containsKey(session.admission.id())) {
            transfer.revoke(session.admission); // what was written may still land: the end of that is the proof
        }
    }

    private void failAll(EchoSession session, String reason) {
        for (Asked asked : new ArrayList<>(open.values())) {
            if (asked.session == session) {
                open.remove(asked.id);
                if (asked.window != null) {
                    asked.window.close(true);
                }
                events.accept("failed " + asked.id + ": " + reason);
            }
        }
    }

    // ---- listener

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
        session.asked.add(EchoFrames.ask(frame));
        writeAsked(session);
    }

    private int writeAsked(EchoSession session) {
        int written = 0;
        while (session.peerReady && !session.asked.isEmpty() && write(session, session.asked.peek())) {
            session.asked.remove();
            written++;
        }
        return written;
    }

    /** Returns false if it must be tried again. */
    private boolean write(EchoSession session, EchoFrames.Ask ask) {
        RemoteWindow window = transfer.allow(session.peer, ask.imm(), beginning(session.target, ask.lengthBytes()));
        long cookie = ++lastCookie;
        int result = transfer.submit(
                session.peer, new SingleWrite(region, 0, session.target, 0, ask.lengthBytes(), window, 1), cookie);
        if (result == TransferEngine.ACCEPTED) {
            writing.put(cookie, new Written(session.peer, window));
        } else {
            transfer.disallow(session.peer, window);
        }
        return result != TransferEngine.BACK_PRESSURE;
    }

    private static WindowArea beginning(RegionDescriptor of, long lengthBytes) {
        long[] length = {lengthBytes};
        return WindowArea.of(of, WindowRanges.ofPages(new int[] {0}, new long[] {0}, length, length));
    }

    private void written(long cookie) {
        Written done = writing.remove(cookie);
        if (byPeer.containsKey(done.peer())) {
            transfer.disallow(done.peer(), done.window());
        }
    }

    // ---- as a subject

    @Override
    public String kind() {
        return KIND;
    }

    @Override
    public ByteString description() {
        return ByteString.copyFromUtf8(word);
    }

    @Override
    public Roles roles() {
        return ROLES;
    }

    @Override
    public Session accept(long link, String peerAddress) {
        return new EchoSession(this, link, true, peerAddress);
    }

    @Override
    public String broken(ControlFrame frame) {
        return switch (frame.getBodyCase()) {
            case ATTACH ->
                frame.getAttach().getSubject().size() == EchoFrames.REGION_LENGTH_BYTES
                                && frame.getAttach().getAdmissionKey().size() == Admission.KEY_LENGTH_BYTES
                        ? ""
                        : "an attachment of another length";
            case SUBJECT ->
                frame.getSubject().getPayload().size() == EchoFrames.ASK_LENGTH_BYTES ? "" : "an ask of another length";
            default -> "";
        };
    }

    @Override
    public List<Duty> duties() {
        return List.of(
                nowNs -> byPeer.values().stream().mapToInt(this::writeAsked).sum());
    }

    @Override
    public CompletionHandler completions() {
        return new Completions();
    }

    @Override
    public long nextDeadlineNs(long nowNs) {
        return nowNs + 1_000_000_000L;
    }

    @Override
    public void shutDown(String reason) {
        closedReason = reason;
    }

    @Override
    public boolean finished() {
        return open.isEmpty() && writing.isEmpty();
    }

    @Override
    public void onTransferEnded(String reason) {
        closedReason = reason;
    }

    @Override
    public boolean changed() {
        return false;
    }

    @Override
    public void publishGauges() {}

    private final class Completions implements CompletionHandler {
        @Override
        public void onWriteCompleted(long cookie) {
            written(cookie);
        }

        @Override
        public void onWriteFailed(long cookie, TransferFault fault, String detail) {
            written(cookie);
        }

        @Override
        public void onWindowFilled(long cookie) {
            Asked asked = open.remove(cookie);
            asked.window.close(true);
            events.accept("arrived " + cookie);
        }

        @Override
        public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {
            throw new AssertionError("more arrived than was asked for");
        }

        @Override
        public void onPeerReady(Peer peer) {
            EchoSession session = byPeer.get(peer);
            if (session != null) {
                session.peerReady = true;
                writeAsked(session);
            }
        }

        @Override
        public void onPeerLost(Peer peer, TransferFault fault, String detail) {
            EchoSession session = byPeer.remove(peer);
            if (session != null) {
                session.peer = null;
                session.peerReady = false;
                sessions.end(session, "the data paths to " + session.peerName() + " ended: " + detail);
            }
        }

        @Override
        public void onAdmissionClosed(Admission admission, String detail) {
            EchoSession session = byAdmission.remove(admission.id());
            sessions.end(session, detail);
            failAll(session, detail);
        }

        @Override
        public void onWriteRefused(Admission admission, String detail) {
            throw new AssertionError(detail);
        }

        @Override
        public void onMessage(Admission from, MemorySegment message) {}
    }
}
