package io.kvmessenger.messenger;

import com.google.protobuf.ByteString;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.decode.Decoder;
import io.kvmessenger.messenger.kv.KvDescription;
import io.kvmessenger.messenger.kv.KvFrameRules;
import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.HeldCounts;
import io.kvmessenger.messenger.port.History;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.MessengerState;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.prefill.LayerWriter;
import io.kvmessenger.messenger.prefill.Offers;
import io.kvmessenger.messenger.prefill.Prefiller;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * The KV cache as the subject of a messenger: an engine's commands, and the frames and completions that belong to them.
 *
 * <p>Owned by the messenger's thread. Frames from decoders go to {@link Prefiller}, frames from prefillers to
 * {@link Decoder}: an engine may be both.
 */
public final class KvCache implements ServedSubject {
    private static final Roles ROLES = new Roles("prefiller", "decoder");

    private final KvGeometry geometry;
    private final EngineEvents engine;
    private final Tally tally;
    private final NanoClock clock;
    private final Sessions sessions;
    private final Prefiller prefiller;
    private final Offers offers;
    private final Decoder decoder;
    private final LayerWriter writer;
    private final History history;
    private final CompletionHandler completions = new Completions();
    private final List<Duty> duties;
    /** Why no KV can move any more; empty while the transfer engine works. */
    private String death = "";
    /** Whether a command has arrived since the gauges were last published. */
    private boolean changed = true;

    /**
     * @param memory what peers write to; as a prefiller, this side sends the checksums that the decoder's grant asks
     *     for, whatever its own mode is
     * @param sessions of the messenger that is to carry the cache
     */
    public KvCache(Decoder.Cache memory, Sessions sessions, ProtocolLimits limits, KvPorts ports) {
        this.geometry = memory.geometry();
        this.engine = ports.engine();
        this.tally = ports.tally();
        this.history = ports.history();
        this.clock = ports.clock();
        this.sessions = sessions;
        this.writer = new LayerWriter(geometry, memory.memory(), memory.context(), ports.transfer());
        this.prefiller = new Prefiller(geometry, sessions, writer, ports, limits);
        this.offers = new Offers(prefiller, engine);
        this.decoder = new Decoder(memory, sessions, ports, limits);
        this.duties = List.of(prefiller::tick, decoder::tick);
    }

    // ---- from the engine

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
            case EngineCommand.Ask ask -> decoder.endBroken(ask);
            case EngineCommand.Offer offer -> offers.endBroken(offer, clock.nowNs());
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
            case EngineCommand.Ask ask -> decoder.ask(ask, nowNs);
            case EngineCommand.Offer offer -> offers.offer(offer, nowNs);
            case EngineCommand.Withdraw withdraw -> offers.withdraw(withdraw.request());
            case EngineCommand.Abandon abandon -> decoder.abandon(abandon.request());
            case EngineCommand.ReportEnd again -> decoder.reportEnd(again.request());
            case EngineCommand.Compared compared -> decoder.compared(compared);
            case EngineCommand.Refuted refuted -> decoder.refuted(refuted);
            case EngineCommand.PullEnded pull -> decoder.pullEnded(pull);
            case EngineCommand.Prices prices -> tally.show(prices);
        }
    }

    public void onEnqueueFailed(TransferKey transfer, String reason) {
        prefiller.onEnqueueFailed(transfer, reason);
    }

    /** Whether the command needs no further handling: it requires the transfer engine, or a peer. */
    private boolean answeredByTheDead(EngineCommand command) {
        switch (command) {
            case EngineCommand.StepEnded _,
                    EngineCommand.StepFailed _,
                    EngineCommand.PrefillEnded _,
                    EngineCommand.Preempt _,
                    EngineCommand.Abandon _ -> {
                return false;
            }
            case EngineCommand.ReportEnd again -> {
                return false;
            }
            case EngineCommand.Fetch fetch -> engine.failed(fetch.request(), death);
            case EngineCommand.Announce announce -> engine.stopped(announce.request(), death);
            case EngineCommand.Ask ask -> engine.offered(ask.request(), 0, OfferOutcome.UNREACHABLE);
            case EngineCommand.Offer offer when offer.heldTokens() > 0 -> engine.released(offer.request());
            default -> {} // nothing is sent, and no peer is dialled
        }
        return true;
    }

    // ---- as a subject

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

    @Override
    public List<Duty> duties() {
        return duties;
    }

    @Override
    public CompletionHandler completions() {
        return completions;
    }

    @Override
    public long nextDeadlineNs(long nowNs) {
        return Math.min(prefiller.nextDeadlineNs(nowNs), decoder.nextDeadlineNs(nowNs));
    }

    /** Whether a layer of a forward pass in flight is awaited, so that the layer counter should be polled closely. */
    @Override
    public boolean watching() {
        return prefiller.watching();
    }

    /** Computed, granted KV leaves; everything else is stopped or cancelled, and each peer is notified. */
    @Override
    public void shutDown(String reason) {
        prefiller.shutDown(reason);
        decoder.shutDown(reason);
    }

    @Override
    public boolean finished() {
        return prefiller.owedCount() == 0 && writer.inFlightCount() == 0 && decoder.fetchCount() == 0;
    }

    @Override
    public void onTransferEnded(String reason) {
        prefiller.onTransferEnded(reason);
        death = reason;
    }

    @Override
    public void onControlEnded(String reason) {
        death = reason;
    }

    @Override
    public boolean changed() {
        return changed;
    }

    @Override
    public void publishGauges() {
        changed = false;
        HeldCounts held = held();
        tally.set(MessengerMetric.FETCHES_OPEN, held.fetches());
        tally.set(MessengerMetric.PREFILLS_OPEN, held.prefills());
        tally.set(MessengerMetric.PAGES_OFFERED, offers.pageCount());
        tally.set(MessengerMetric.GRANTS_WAITING, held.grantsWaiting());
        tally.set(MessengerMetric.WRITES_IN_FLIGHT, held.writesInFlight());
        tally.set(MessengerMetric.WINDOWS_OPEN, held.windowsOpen());
        tally.set(MessengerMetric.PAGES_QUARANTINED, held.quarantinedPages());
    }

    // ---- for the status page and for tests

    /** Number of requests visited by loops over several: the cost of a duty cycle must not grow with a queue. */
    long visits() {
        return prefiller.visits() + decoder.visits();
    }

    /** Number of entries that are kept for fetches, for questions of either side and for lost peers; none at rest. */
    public int fetchEntryCount() {
        return decoder.entryCount() + offers.openAskCount();
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
     * What the cache and its messenger hold and wait for, for the status page.
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
