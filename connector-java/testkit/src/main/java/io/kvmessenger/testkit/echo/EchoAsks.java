package io.kvmessenger.testkit.echo;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.AttachWire;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferEngine;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The dialler's side of an echo: asks, the windows that they open, and the proof that nothing lands any more. A listener
 * that has been asked once is asked over the same session as long as that lives.
 *
 * <p>Owned by the messenger's thread. An ask ends once, by an event: when its window is full, or when its session has
 * ended and its admission is closed.
 */
final class EchoAsks {
    private final Region region;
    private final Sessions sessions;
    private final TransferEngine transfer;
    private final EchoEvents events;
    private final NanoClock clock;
    private final Map<Long, Asked> open = new LinkedHashMap<>();
    private final Map<String, EchoSession> byAddress = new HashMap<>();
    /** Sessions with an admission that is not closed, also those that have ended. */
    private final Map<Integer, EchoSession> byAdmission = new HashMap<>();
    /** Why no more asks are taken; empty while they are. */
    private String closedReason = "";

    /** An ask that has not ended. */
    private static final class Asked {
        final long id;
        final int lengthBytes;
        final EchoSession session;
        final long deadlineNs;
        /** Null before the listener has been asked. */
        ImmWindow window;

        Asked(long id, int lengthBytes, EchoSession session, long deadlineNs) {
            this.id = id;
            this.lengthBytes = lengthBytes;
            this.session = session;
            this.deadlineNs = deadlineNs;
        }

        boolean hasAll() {
            return window != null && window.arrivedWeight() == window.expectedWeight();
        }
    }

    EchoAsks(Region region, Sessions sessions, TransferEngine transfer, EchoEvents events, NanoClock clock) {
        this.region = region;
        this.sessions = sessions;
        this.transfer = transfer;
        this.events = events;
        this.clock = clock;
    }

    /** @throws IllegalStateException if an ask with this id has not ended */
    void ask(long id, int lengthBytes, String address, EchoSubject.Dial dial, long deadlineNs) {
        if (open.containsKey(id)) {
            throw new IllegalStateException("ask " + id + " is open already: give each ask an id of its own");
        }
        if (!closedReason.isEmpty()) {
            events.failed(id, closedReason);
            return;
        }
        if (lengthBytes < 1 || lengthBytes > EchoSubject.halfBytes(region.descriptor())) {
            events.failed(
                    id,
                    "lengthBytes is " + lengthBytes + ", expected 1 to the "
                            + EchoSubject.halfBytes(region.descriptor())
                            + " of half this side's region: ask for less");
            return;
        }
        EchoSession session = byAddress.get(address);
        if (session == null) {
            session = dial.session();
            byAddress.put(address, session);
        }
        open.put(id, new Asked(id, lengthBytes, session, deadlineNs));
        request();
    }

    void admit(EchoSession session, Attach.Builder attach) {
        session.admission = transfer.admit(session.peerName());
        byAdmission.put(session.admission.id(), session);
        ByteString key = session.concealed(ByteString.copyFrom(session.admission.key()));
        AttachWire.encode(attach, transfer.address(), key, List.of());
        attach.setSubject(EchoFrames.encode(region.descriptor()));
    }

    void onReady(EchoSession session) {
        if (!session.inbound) {
            request();
        }
    }

    /** Asks what could not be asked yet: its session was not ready, or no window was free. Returns how many it asked. */
    int request() {
        int requested = 0;
        for (Asked asked : open.values()) {
            if (asked.window == null && asked.session.takesWork()) {
                asked.window = transfer.openWindow(
                        asked.session.admission,
                        EchoSubject.answerArea(region.descriptor(), asked.lengthBytes),
                        1,
                        asked.id);
                if (asked.window == null) {
                    return requested;
                }
                sessions.send(
                        asked.session,
                        EchoFrames.encode(new EchoFrames.Ask(asked.id, asked.window.imm(), asked.lengthBytes)));
                requested++;
            }
        }
        return requested;
    }

    /**
     * Ends the sessions of asks whose limit has passed: a listener that lives may still never answer, and nothing else
     * would end such an ask.
     */
    int endOverdue(long nowNs) {
        int ended = 0;
        for (Asked asked : new ArrayList<>(open.values())) {
            if (nowNs - asked.deadlineNs >= 0 && asked.session.state() != Session.State.ENDED) {
                sessions.end(asked.session, "ask " + asked.id + " was not answered within its limit");
                ended++;
            }
        }
        return ended;
    }

    void onWindowFilled(long id) {
        Asked asked = open.remove(id);
        if (asked != null) {
            asked.window.close(true);
            events.arrived(id);
        }
    }

    void onWindowOvershot(long id) {
        Asked asked = open.get(id);
        if (asked != null) {
            sessions.end(asked.session, asked.session.peerName() + " wrote more than ask " + id + " was for");
        }
    }

    /** What was written may still land: only the end of the admission is the proof. */
    void onEnded(EchoSession session, String reason) {
        byAddress.values().remove(session);
        if (session.admission != null && byAdmission.containsKey(session.admission.id())) {
            session.endedReason = reason;
            transfer.revoke(session.admission);
        } else {
            endAll(session, reason);
        }
    }

    void onAdmissionClosed(Admission admission, String detail) {
        EchoSession session = byAdmission.remove(admission.id());
        if (session == null) {
            return;
        }
        if (session.state() == Session.State.ENDED) {
            endAll(session, session.endedReason);
            return;
        }
        byAddress.values().remove(session); // the next ask dials again
        for (Asked asked : new ArrayList<>(open.values())) {
            if (asked.session == session && asked.hasAll()) {
                end(asked, detail);
            }
        }
        sessions.endUnlessExplained(session, detail, clock.nowNs()); // its end decides the other asks
    }

    private void endAll(EchoSession session, String reason) {
        for (Asked asked : new ArrayList<>(open.values())) {
            if (asked.session == session) {
                end(asked, reason);
            }
        }
    }

    /** Nothing lands any more: what is all here has arrived, whatever became of the session. */
    private void end(Asked asked, String reason) {
        open.remove(asked.id);
        boolean arrived = asked.hasAll();
        if (asked.window != null) {
            asked.window.close(true);
        }
        if (arrived) {
            events.arrived(asked.id);
        } else {
            events.failed(asked.id, reason);
        }
    }

    /** Takes no more asks, and ends those of which the listener does not know. */
    void shutDown(String reason) {
        closedReason = reason;
        for (Asked asked : new ArrayList<>(open.values())) {
            if (asked.window == null) {
                end(asked, reason);
            }
        }
    }

    void onTransferEnded(String reason) {
        closedReason = reason;
        for (Asked asked : new ArrayList<>(open.values())) {
            end(asked, reason);
        }
    }

    /** Whether something could be asked but for a free window. */
    boolean waits() {
        return open.values().stream().anyMatch(asked -> asked.window == null && asked.session.takesWork());
    }

    int openCount() {
        return open.size();
    }
}
