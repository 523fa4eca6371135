package io.kvmessenger.messenger;

import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.session.PeerWarnings;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.EngineEndedException;
import io.kvmessenger.transfer.TransferEngine;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/**
 * The agent that joins a subject, its peers' links and the transfer engine's completions.
 *
 * <p>One thread calls everything here; {@link #doWork} is its duty cycle. It owns no thread, no socket and no clock, so
 * a simulation can run many of them in one thread. It knows no subject: {@link KvCache} is one.
 */
public final class Messenger {
    /** Completions handled in one duty cycle, so that timers are never starved. */
    private static final int COMPLETIONS_PER_CYCLE_MAX = 1024;

    private static final String RESTART = ": nothing moves until this engine is restarted";

    private final Sessions sessions;
    private final ServedSubject subject;
    private final TransferEngine transfer;
    private final Tally tally;
    private final PeerWarnings warnings;
    private final NanoClock clock;
    private final CompletionHandler completions;
    /** The parts of the duty cycle, in order. */
    private final ServedSubject.Duty[] duties;
    /** Completed at the end of a drain; null before a drain begins and after it has ended. */
    private CompletableFuture<Void> drained;
    /** Completed when all peers have closed their links; null before goodbye is sent and after completion. */
    private CompletableFuture<Void> left;
    /** Why nothing can move any more; empty while the transfer engine works. Written by the messenger's thread. */
    private volatile String death = "";
    /** Why nothing is begun any more although writes may be in flight; empty while the control network works. */
    private volatile String ending = "";
    /** Whether any input has arrived since the gauges were last published. */
    private boolean changed = true;

    /** The ports of every messenger, whatever it carries. */
    public record Ports(TransferEngine transfer, Tally tally, PeerWarnings warnings, NanoClock clock) {}

    /** @param subject made with these sessions, which carry it from now on */
    public Messenger(Sessions sessions, ServedSubject subject, Ports ports) {
        this.sessions = sessions;
        this.subject = subject;
        this.transfer = ports.transfer();
        this.tally = ports.tally();
        this.warnings = ports.warnings();
        this.clock = ports.clock();
        this.completions = subject.completions();
        this.duties = dutyCycle(subject);
        sessions.carry(subject);
    }

    private ServedSubject.Duty[] dutyCycle(ServedSubject subject) {
        List<ServedSubject.Duty> all = new ArrayList<>();
        all.add(nowNs -> poll());
        all.addAll(subject.duties());
        all.add(sessions::tick);
        all.add(nowNs -> completeEnds());
        return all.toArray(ServedSubject.Duty[]::new);
    }

    public void onLinkOpened(long link, boolean inbound, String peerAddress) {
        changed = true;
        sessions.onLinkOpened(link, inbound, peerAddress, clock.nowNs());
    }

    public void onFrame(long link, ControlFrame frame) {
        changed = true;
        try {
            sessions.onFrame(link, frame, clock.nowNs());
        } catch (RuntimeException | Error bug) {
            sessions.endBroken(link, frame.getBodyCase(), bug); // the other sessions are not affected
            throw bug;
        }
    }

    public void onLinkClosed(long link, String reason) {
        changed = true;
        sessions.onLinkClosed(link, reason);
    }

    /** A peer sent bytes that are not a control frame; its link is closed already. */
    public void onGarbage() {
        tally.add(MessengerMetric.FRAMES_INVALID, 1);
    }

    /** An incoming link exceeded the limit on open links; it is closed already. */
    public void onLinkTurnedAway() {
        tally.add(MessengerMetric.HANDSHAKES_DROPPED, 1);
    }

    /** An incoming link was refused before any frame could be exchanged; it is closed already. */
    public void onLinkRefused(String peerAddress, String reason) {
        tally.add(MessengerMetric.HANDSHAKES_DROPPED, 1);
        warnings.add(peerAddress, reason);
    }

    /**
     * Runs one duty cycle. Returns the amount of work done; after 0 nothing is left to do until the next input or
     * deadline. An exception of one part is rethrown after all parts have run.
     */
    public int doWork() {
        long nowNs = clock.nowNs();
        int work = 0;
        Throwable firstBug = null;
        for (ServedSubject.Duty duty : duties) {
            try {
                work += duty.run(nowNs);
            } catch (RuntimeException | Error bug) {
                firstBug = firstBug == null ? bug : firstBug;
            }
        }
        if (work > 0 || changed || subject.changed()) {
            changed = false;
            subject.publishGauges();
            tally.set(MessengerMetric.SESSIONS_OPEN, sessions.readyCount());
        }
        if (firstBug instanceof Error error) {
            throw error;
        }
        if (firstBug != null) {
            throw (RuntimeException) firstBug;
        }
        return work;
    }

    /**
     * The control network has ended: no peer is heard any more. All sessions end. What the transfer engine still moves
     * is over by its own proofs, so death follows when nothing is left to finish.
     */
    public void onControlEnded(String why) {
        changed = true;
        ending = why + RESTART;
        subject.shutDown(ending);
        sessions.endAll(ending);
        subject.onControlEnded(ending);
    }

    /** Why this messenger can never move anything again, and holds nothing; empty before. Any thread. */
    public Optional<String> death() {
        return Optional.of(death).filter(reason -> !reason.isEmpty());
    }

    /** Why this messenger begins nothing any more; empty while it works. Any thread. */
    public Optional<String> failure() {
        return death().or(() -> Optional.of(ending).filter(reason -> !reason.isEmpty()));
    }

    private int poll() {
        if (!death.isEmpty()) {
            return 0;
        }
        try {
            return transfer.poll(completions, COMPLETIONS_PER_CYCLE_MAX);
        } catch (EngineEndedException ended) {
            die(ended);
            throw ended; // thrown once, so that it is logged with its cause
        }
    }

    /** Ends every request that waits for the transfer engine; pages that a peer may still write to are quarantined. */
    private void die(EngineEndedException ended) {
        changed = true;
        String reason = ended.getMessage() + RESTART;
        subject.shutDown(reason);
        sessions.endAll(reason);
        subject.onTransferEnded(reason);
        death = reason; // last: a reader that sees it can rely on all requests having been ended
    }

    private int completeEnds() {
        if (!ending.isEmpty() && death.isEmpty() && subject.finished()) {
            death = ending;
        }
        if (drained != null && subject.finished()) {
            drained.complete(null);
            drained = null;
        }
        if (left != null && sessions.count() == 0) {
            left.complete(null);
            left = null;
        }
        return 0;
    }

    /** The next moment at which {@link #doWork} has something to do without any input. */
    public long nextDeadlineNs() {
        long nowNs = clock.nowNs();
        return Math.min(sessions.nextDeadlineNs(nowNs), subject.nextDeadlineNs(nowNs));
    }

    /** Whether something outside the messenger is awaited that should be polled closely. */
    public boolean watching() {
        return subject.watching();
    }

    /**
     * Prepares for {@link #leave}: the subject accepts nothing new and finishes what it can. The caller has to keep
     * running duty cycles.
     *
     * @param drained completed when no transfer is left to finish; bounding the wait is up to the caller
     */
    public void drain(String reason, CompletableFuture<Void> drained) {
        changed = true;
        this.drained = drained;
        subject.shutDown(reason);
    }

    /**
     * Ends all sessions in good order. Afterwards the caller stops the duty cycle and closes the transfer engine.
     *
     * @param left completed when every peer has closed its link; the caller bounds the wait, as a peer may have stopped
     */
    public void leave(String reason, CompletableFuture<Void> left) {
        changed = true;
        this.left = left;
        sessions.sayGoodbye(reason);
    }
}
