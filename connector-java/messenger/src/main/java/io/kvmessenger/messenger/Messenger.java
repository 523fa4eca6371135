package io.kvmessenger.messenger;

import com.google.protobuf.ByteString;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.decode.Decoder;
import io.kvmessenger.messenger.kv.KvDescription;
import io.kvmessenger.messenger.kv.KvFrameRules;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.ContextRow;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.HeldCounts;
import io.kvmessenger.messenger.port.History;
import io.kvmessenger.messenger.port.LayerProgress;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.MessengerState;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.prefill.LayerWriter;
import io.kvmessenger.messenger.prefill.Prefiller;
import io.kvmessenger.messenger.session.ControlNetwork;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.messenger.session.PeerWarnings;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.session.Subject;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.EngineEndedException;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.random.RandomGenerator;

/**
 * The agent that joins an engine's commands, its peers' frames and the transfer engine's completions.
 *
 * <p>One thread calls everything here; {@link #doWork} is its duty cycle. It owns no thread, no socket and no clock, so
 * a simulation can run many of them in one thread. Frames from decoders go to {@link Prefiller}, frames from prefillers
 * to {@link Decoder}: an engine may be both.
 */
public final class Messenger {
    /** Completions handled in one duty cycle, so that timers are never starved. */
    private static final int COMPLETIONS_PER_CYCLE_MAX = 1024;

    private static final Subject.Roles ROLES = new Subject.Roles("prefiller", "decoder");
    private static final Part[] PARTS = Part.values();

    private final TransferEngine transfer;
    private final EngineEvents engine;
    private final Tally tally;
    private final PeerWarnings warnings;
    private final Sessions sessions;
    private final Prefiller prefiller;
    private final Decoder decoder;
    private final LayerWriter writer;
    private final NanoClock clock;
    private final History history = new History();
    private final CompletionHandler completions = new Completions();
    /** Completed at the end of a drain; null before a drain begins and after it has ended. */
    private CompletableFuture<Void> drained;
    /** Completed when all peers have closed their links; null before goodbye is sent and after completion. */
    private CompletableFuture<Void> left;
    /** Why no KV can move any more; empty while the transfer engine works. Written by the messenger's thread. */
    private volatile String death = "";
    /** Whether any input has arrived since the gauges were last published. */
    private boolean changed = true;

    /** The ports through which a messenger reaches its engine, its peers, the transfer engine and the clock. */
    public record Ports(
            TransferEngine transfer,
            ControlNetwork network,
            EngineEvents engine,
            EngineIntake intake,
            LayerProgress progress,
            Tally tally,
            NanoClock clock,
            RandomGenerator random) {
        private Decoder.Ports ofDecoder(History history) {
            return new Decoder.Ports(transfer, engine, tally, history, clock);
        }

        private Prefiller.Ports ofPrefiller(History history) {
            return new Prefiller.Ports(transfer, engine, intake, progress, tally, history, clock, random);
        }
    }

    /**
     * @param memory of each rank of the geometry, in its order
     * @param context the kinds of rows that a transfer carries besides its KV
     * @param checksumMode which of the arriving pages are compared with the prefiller's; as a prefiller, this side
     *     sends the checksums that the decoder's grant asks for
     */
    public Messenger(
            MessengerIdentity identity,
            KvGeometry geometry,
            List<RankMemory> memory,
            List<ContextRow> context,
            ProtocolLimits limits,
            ChecksumMode checksumMode,
            Ports ports) {
        this.transfer = ports.transfer();
        this.engine = ports.engine();
        this.tally = ports.tally();
        this.clock = ports.clock();
        this.warnings = new PeerWarnings(ports.engine(), clock);
        this.sessions = new Sessions(
                identity, new KvSubject(geometry), ports.network(), limits, tally, ports.random(), warnings);
        this.writer = new LayerWriter(geometry, memory, context, transfer);
        this.prefiller = new Prefiller(geometry, sessions, writer, ports.ofPrefiller(history), limits);
        this.decoder = new Decoder(
                new Decoder.Cache(geometry, memory, context, checksumMode), sessions, ports.ofDecoder(history), limits);
    }

    /** A part of the duty cycle. Parts are isolated: an exception in one does not keep the others from running. */
    private enum Part {
        COMPLETIONS {
            @Override
            int run(Messenger messenger, long nowNs) {
                return messenger.poll();
            }
        },
        PREFILLS {
            @Override
            int run(Messenger messenger, long nowNs) {
                return messenger.prefiller.tick(nowNs);
            }
        },
        FETCHES {
            @Override
            int run(Messenger messenger, long nowNs) {
                return messenger.decoder.tick(nowNs);
            }
        },
        SESSIONS {
            @Override
            int run(Messenger messenger, long nowNs) {
                return messenger.sessions.tick(nowNs);
            }
        },
        ENDS {
            @Override
            int run(Messenger messenger, long nowNs) {
                messenger.completeEnds();
                return 0;
            }
        };

        abstract int run(Messenger messenger, long nowNs);
    }

    public void onCommand(EngineCommand command) {
        changed = true;
        if (!death.isEmpty() && answeredByTheDead(command)) {
            return;
        }
        try {
            carryOut(command, clock.nowNs());
        } catch (RuntimeException | Error bug) {
            endBroken(command, bug); // the other requests are not affected
            throw bug;
        }
    }

    /** Answers a command that has failed where the engine would wait for ever. */
    private void endBroken(EngineCommand command, Throwable bug) {
        switch (command) {
            case EngineCommand.Fetch fetch -> decoder.endBroken(fetch, bug);
            case EngineCommand.Announce announce ->
                engine.stopped(announce.request(), "it could not be announced: " + bug);
            default -> {} // the engine asks again, or ends what it concerns by a command of its own
        }
    }

    private void carryOut(EngineCommand command, long nowNs) {
        switch (command) {
            case EngineCommand.Step step -> prefiller.stepBegan(step, nowNs);
            case EngineCommand.Announce announce -> prefiller.announce(announce);
            case EngineCommand.Computed computed -> prefiller.computed(computed.chunk(), nowNs);
            case EngineCommand.StepEnded ended -> prefiller.stepEnded(ended, nowNs);
            case EngineCommand.StepFailed failed -> prefiller.stepFailed(failed.stepIndex());
            case EngineCommand.PrefillEnded ended -> prefiller.prefillEnded(ended, nowNs);
            case EngineCommand.Preempt preempt -> prefiller.preempt(preempt);
            case EngineCommand.Fetch fetch -> decoder.fetch(fetch, nowNs);
            case EngineCommand.Decline decline -> decoder.decline(decline, nowNs);
            case EngineCommand.Reject reject -> decoder.reject(reject, nowNs);
            case EngineCommand.Expect expect -> decoder.expect(expect, nowNs);
            case EngineCommand.Abandon abandon -> decoder.abandon(abandon.request());
            case EngineCommand.Compared compared -> decoder.compared(compared);
            case EngineCommand.Refuted refuted -> decoder.refuted(refuted);
            case EngineCommand.CountHeld count -> count.answer().complete(held());
        }
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

    public void onEnqueueFailed(TransferKey transfer, String reason) {
        prefiller.onEnqueueFailed(transfer, reason);
    }

    /**
     * Runs one duty cycle. Returns the amount of work done; after 0 nothing is left to do until the next input or
     * deadline. An exception of one part is rethrown after all parts have run.
     */
    public int doWork() {
        long nowNs = clock.nowNs();
        int work = 0;
        Throwable firstBug = null;
        for (Part part : PARTS) {
            try {
                work += part.run(this, nowNs);
            } catch (RuntimeException | Error bug) {
                firstBug = firstBug == null ? bug : firstBug;
            }
        }
        if (work > 0 || changed) {
            changed = false;
            publishGauges();
        }
        if (firstBug instanceof Error error) {
            throw error;
        }
        if (firstBug != null) {
            throw (RuntimeException) firstBug;
        }
        return work;
    }

    /** Why this messenger can never move KV again; empty while it works. Any thread. */
    public Optional<String> death() {
        String reason = death;
        return reason.isEmpty() ? Optional.empty() : Optional.of(reason);
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
        String reason = ended.getMessage() + ": no KV moves until this engine is restarted";
        prefiller.shutDown(reason);
        decoder.shutDown(reason);
        sessions.endAll(reason);
        prefiller.onTransferEnded(reason);
        death = reason; // last: a reader that sees it can rely on all requests having been ended
    }

    /** Whether the command needs no further handling: it requires the transfer engine, which has ended. */
    private boolean answeredByTheDead(EngineCommand command) {
        switch (command) {
            case EngineCommand.StepEnded ended -> {
                return false;
            }
            case EngineCommand.StepFailed failed -> {
                return false;
            }
            case EngineCommand.PrefillEnded ended -> {
                return false;
            }
            case EngineCommand.Preempt preempt -> {
                return false;
            }
            case EngineCommand.Abandon abandon -> {
                return false;
            }
            case EngineCommand.CountHeld count -> {
                return false;
            }
            case EngineCommand.Fetch fetch -> engine.failed(fetch.request(), death);
            case EngineCommand.Announce announce -> engine.stopped(announce.request(), death);
            default -> {} // nothing is sent, and no peer is dialled
        }
        return true;
    }

    private void completeEnds() {
        if (drained != null) {
            completeDrain();
        }
        if (left != null && sessions.count() == 0) {
            left.complete(null);
            left = null;
        }
    }

    /** The next moment at which {@link #doWork} has something to do without any input. */
    public long nextDeadlineNs() {
        long nowNs = clock.nowNs();
        return Math.min(
                sessions.nextDeadlineNs(nowNs),
                Math.min(prefiller.nextDeadlineNs(nowNs), decoder.nextDeadlineNs(nowNs)));
    }

    /** Whether a layer of a forward pass in flight is awaited, so that the layer counter should be polled closely. */
    public boolean watching() {
        return prefiller.watching();
    }

    /** Number of requests visited by loops over several: the cost of a duty cycle must not grow with a queue. */
    long looks() {
        return prefiller.looks() + decoder.looks();
    }

    /** Number of entries that the receiving side keeps for requests under way and lost peers; none at rest. */
    public int fetchEntryCount() {
        return decoder.entryCount();
    }

    public HeldCounts held() {
        return new HeldCounts(
                decoder.fetchCount(),
                prefiller.prefillCount(),
                prefiller.grantsWaitingCount(),
                writer.inFlightCount(),
                decoder.windowCount(),
                decoder.quarantinedPageCount());
    }

    /**
     * What the messenger holds and waits for, for the status page.
     *
     * @param rowsMax limit on each list
     */
    public MessengerState describe(int rowsMax) {
        long nowNs = clock.nowNs();
        return new MessengerState(
                sessions.rows(nowNs),
                decoder.fetchCount(),
                decoder.rows(rowsMax, nowNs),
                prefiller.prefillCount(),
                prefiller.rows(rowsMax),
                prefiller.grantsWaitingCount(),
                prefiller.grantRows(rowsMax, nowNs),
                history.transfers(nowNs),
                history.failures(nowNs));
    }

    /**
     * Prepares for {@link #leave}: accepts no new grants and lets computed, granted KV leave. Everything else is
     * stopped or cancelled, and each peer is notified. The caller has to keep running duty cycles.
     *
     * @param drained completed when no transfer is left to finish; bounding the wait is up to the caller
     */
    public void drain(String reason, CompletableFuture<Void> drained) {
        changed = true;
        this.drained = drained;
        prefiller.shutDown(reason);
        decoder.shutDown(reason);
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

    private void completeDrain() {
        if (prefiller.owedCount() == 0 && writer.inFlightCount() == 0 && decoder.fetchCount() == 0) {
            drained.complete(null);
            drained = null;
        }
    }

    private void publishGauges() {
        HeldCounts held = held();
        tally.set(MessengerMetric.FETCHES_OPEN, held.fetches());
        tally.set(MessengerMetric.PREFILLS_OPEN, held.prefills());
        tally.set(MessengerMetric.GRANTS_WAITING, held.grantsWaiting());
        tally.set(MessengerMetric.WRITES_IN_FLIGHT, held.writesInFlight());
        tally.set(MessengerMetric.WINDOWS_OPEN, held.windowsOpen());
        tally.set(MessengerMetric.PAGES_QUARANTINED, held.quarantinedPages());
        tally.set(MessengerMetric.SESSIONS_OPEN, sessions.readyCount());
    }

    /** Sessions of this messenger: decoders dial it, and it dials prefillers. */
    private final class KvSubject implements Subject {
        private final KvGeometry geometry;

        KvSubject(KvGeometry geometry) {
            this.geometry = geometry;
        }

        @Override
        public String kind() {
            return KvDescription.KIND;
        }

        @Override
        public ByteString description() {
            return KvDescription.encode(geometry);
        }

        @Override
        public Roles roles() {
            return ROLES;
        }

        @Override
        public Session accept(long link, String peerAddress) {
            return prefiller.accept(link, peerAddress);
        }

        @Override
        public String broken(ControlFrame frame) {
            return KvFrameRules.broken(frame);
        }
    }

    /** Forwards completions to the side that they belong to. */
    private final class Completions implements CompletionHandler {
        @Override
        public void onWriteCompleted(long cookie) {
            prefiller.onWriteCompleted(cookie);
        }

        @Override
        public void onWriteFailed(long cookie, TransferFault fault, String detail) {
            prefiller.onWriteFailed(cookie, fault, detail);
        }

        @Override
        public void onWindowFilled(long cookie) {
            decoder.onWindowFilled(cookie);
        }

        @Override
        public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {
            decoder.onWindowOvershot(cookie, arrivedWeight, expectedWeight);
        }

        @Override
        public void onPeerReady(Peer peer) {
            prefiller.onPeerReady(peer);
        }

        @Override
        public void onPeerLost(Peer peer, TransferFault fault, String detail) {
            prefiller.onPeerLost(peer, fault, detail);
        }

        @Override
        public void onAdmissionClosed(Admission admission, String detail) {
            decoder.onAdmissionClosed(admission, detail);
        }

        @Override
        public void onWriteRefused(Admission admission, String detail) {
            decoder.onWriteRefused(admission, detail);
        }

        @Override
        public void onMessage(Admission from, MemorySegment message) {
            // The messenger's own messages use control links; a peer has no reason to send one here.
            tally.add(MessengerMetric.FRAMES_INVALID, 1);
        }
    }
}
