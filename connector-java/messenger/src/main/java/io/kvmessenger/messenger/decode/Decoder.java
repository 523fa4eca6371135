package io.kvmessenger.messenger.decode;

import com.google.protobuf.ByteString;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.kv.KvSession;
import io.kvmessenger.messenger.pages.GrantedRanges;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.ContextRow;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.port.FetchFailure;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.MessengerState.FetchRow;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.AttachWire;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.PeerContextRow;
import io.kvmessenger.messenger.wire.Prefilled;
import io.kvmessenger.specdecode.ContextChoice;
import io.kvmessenger.specdecode.ContextKinds;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferEngine;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The receiving side: grants pages to prefillers, counts what arrives, and knows for each request when nothing can
 * write to its pages any more.
 *
 * <p>A fetch has one source for each messenger of the prefiller's engine, and each source has a window of its own. A
 * source is over only after (a) its expected weight has arrived, (b) the prefiller has confirmed that all its writes
 * have completed and none will follow, or (c) the prefiller's admission is closed. A fetch ends, with one
 * {@code arrived} or {@code failed}, when all its sources are over. A timeout alone never ends a granted source; it
 * starts a cancellation.
 *
 * <p>Owned by the messenger's thread. It computes no transfer plan: what it expects follows from its own grant.
 */
public final class Decoder {
    private final KvGeometry geometry;
    private final SourceCoverage coverage;
    /** Indexed by rank, then by memory. */
    private final List<List<RegionDescriptor>> regions;

    private final List<PeerContextRow> context;
    private final ContextKinds contextKinds;
    private final TransferEngine transfer;
    private final Sessions sessions;
    private final PrefillerLinks links;
    private final EngineEvents engine;
    private final Tally tally;
    private final NanoClock clock;
    private final ProtocolLimits limits;
    private final GrantSender grants;
    private final FetchEnds ends;
    private final Asks asks;
    private final Comparisons comparisons;
    private final OpenVerdicts verdicts;
    private final SessionEnds sessionEnds;

    private final Fetches fetches = new Fetches();
    private final Map<Integer, PrefillerSession> byAdmission = new HashMap<>();

    /**
     * The memory that prefillers write to.
     *
     * @param memory of each rank of the geometry, in its order
     * @param checksumMode which of the arriving pages are compared
     */
    public record Cache(
            KvGeometry geometry, List<RankMemory> memory, List<ContextRow> context, ChecksumMode checksumMode) {}

    public Decoder(Cache cache, Sessions sessions, KvPorts ports, ProtocolLimits limits) {
        this.geometry = cache.geometry();
        this.coverage = new SourceCoverage(geometry);
        this.context = cache.context().stream().map(PeerContextRow::of).toList();
        this.contextKinds = ContextRow.kinds(cache.context());
        this.regions = cache.memory().stream().map(RankMemory::descriptors).toList();
        this.transfer = ports.transfer();
        this.sessions = sessions;
        KvSession.Side own = new KvSession.Side(geometry, ports.engine(), ports.tally());
        this.links =
                new PrefillerLinks(sessions, (link, peerAddress) -> new PrefillerSession(own, link, peerAddress, this));
        this.engine = ports.engine();
        this.tally = ports.tally();
        this.clock = ports.clock();
        this.limits = limits;
        this.asks = new Asks(links, sessions, engine, tally);
        this.grants = new GrantSender(cache, fetches, coverage, links, sessions, ports, limits);
        this.comparisons = new Comparisons(ports.tally());
        this.verdicts = new OpenVerdicts(transfer);
        this.ends = new FetchEnds(fetches, grants, links, sessions, verdicts, cache, ports, limits);
        this.sessionEnds = new SessionEnds(fetches, ends, verdicts, ports.clock(), limits);
    }

    public void fetch(EngineCommand.Fetch ask, long nowNs) {
        tally.add(MessengerMetric.FETCHES_STARTED, 1);
        if (fetches.of(ask.request()) != null) {
            engine.log(
                    EngineLog.Level.ERROR,
                    "fetch for request " + ask.request() + " was asked for twice; the second is ignored");
            return;
        }
        long limitNs = ask.limitNs() > 0 ? ask.limitNs() : limits.fetchLimitNs();
        Fetch fetch = new Fetch(ask, nowNs, nowNs + limitNs);
        fetches.add(fetch);
        String unfit = coverage.unfit(ask);
        if (unfit.isEmpty()) {
            unfit = describeArea(fetch);
        }
        if (!unfit.isEmpty()) {
            ends.fail(fetch, FetchFailure.UNGRANTABLE, unfit);
            return;
        }
        for (EngineCommand.PrefillerAddress address : ask.prefillers()) {
            PrefillerSession session = links.at(address, nowNs);
            links.takeExpected(session, fetch.transfer);
            FetchSource source = new FetchSource(fetch, address, session);
            fetches.add(source);
        }
        grantAll(fetch);
    }

    /** A fetch whose command has failed ends: without this its engine would wait for ever. */
    public void endBroken(EngineCommand.Fetch ask, Throwable bug) {
        Fetch fetch = fetches.of(ask.request());
        String sentence = "its fetch could not be begun: " + bug;
        if (fetch == null) {
            engine.failed(ask.request(), sentence); // nothing was granted
        } else {
            ends.fail(fetch, FetchFailure.FAULT, sentence);
        }
    }

    /** Sets the fetch's context rows and the memory that may be written. Returns why that is impossible, or "". */
    private String describeArea(Fetch fetch) {
        EngineCommand.Fetch ask = fetch.ask;
        try {
            // Without a slot it is a fetch of what was offered: its source refuses that for a prompt with rows.
            boolean alone = ask.contextSlot() == ContextSlots.NO_SLOT
                    && ask.contextKinds().isEmpty();
            fetch.context = alone ? ContextChoice.NONE : contextKinds.chosen(ask.contextKinds());
            fetch.area = GrantedRanges.of(
                    geometry, regions, ask.pages(), PeerContextRow.parts(context, fetch.context, ask.contextSlot()));
            return "";
        } catch (IllegalArgumentException e) {
            return "the engine asked for what cannot be granted: " + e.getMessage();
        }
    }

    /** Tells prefillers that no grant will come. A prefiller that cannot be reached waits until its own limit. */
    public void decline(EngineCommand.Decline decline, long nowNs) {
        if (asks.dropUnsent(decline.transfer())) {
            return;
        }
        links.each(decline.prefillers(), nowNs, session -> links.decline(session, decline.transfer()));
    }

    /** Asks another engine what its prefix cache holds of a prompt. */
    public void ask(EngineCommand.Ask ask, long nowNs) {
        asks.ask(ask, nowNs);
    }

    /** A question whose command has failed is answered: without this its request would wait for ever. */
    public void endBroken(EngineCommand.Ask ask) {
        asks.endBroken(ask);
    }

    /** Tells prefillers that a queued request will fetch. An unreachable one keeps its pages until its own limit. */
    public void expect(EngineCommand.Expect expect, long nowNs) {
        links.each(expect.prefillers(), nowNs, session -> links.expect(session, expect.transfer()));
    }

    /** Tells prefillers that a request is not here. An unreachable one keeps its pages until its own limit. */
    public void reject(EngineCommand.Reject reject, long nowNs) {
        links.each(reject.prefillers(), nowNs, session -> links.reject(session, reject.transferId()));
    }

    /** Counts a comparison of received KV with the engine's own. */
    public void compared(EngineCommand.Compared compared) {
        comparisons.add(compared, links.known(compared.prefiller()));
    }

    /** Counts fetches that the engine does not begin. */
    public void refuted(EngineCommand.Refuted refuted) {
        tally.add(MessengerMetric.FETCHES_REFUTED, refuted.fetchCount());
    }

    /** Counts a request that might have pulled. */
    public void pullEnded(EngineCommand.PullEnded pull) {
        asks.pullEnded(pull);
    }

    public void abandon(String request) {
        Fetch fetch = fetches.of(request);
        if (fetch == null) {
            return; // it has ended; the event is on its way to the engine
        }
        tally.add(MessengerMetric.FETCHES_ABANDONED, 1);
        ends.fail(fetch, FetchFailure.ABANDONED, "the engine gave the request up");
    }

    /** Reports the end of a fetch that is no longer here, whatever it was; a fetch that is will end by itself. */
    public void reportEnd(String request) {
        if (fetches.of(request) == null) {
            engine.failed(request, "it is not under way any more, and nothing writes to its pages");
        }
    }

    /** Fails every fetch. Granted fetches end when nothing can write to their pages any more. */
    public void shutDown(String reason) {
        asks.shutDown();
        fetches.snapshot().forEach(fetch -> ends.fail(fetch, FetchFailure.STOPPING, reason));
    }

    void onAdmitting(PrefillerSession session, Attach.Builder attach) {
        session.admission = transfer.admit(session.peerName());
        byAdmission.put(session.admission.id(), session);
        AttachWire.encode(
                attach, transfer.address(), session.concealed(ByteString.copyFrom(session.admission.key())), regions);
        PeerContextRow.encode(attach, context);
    }

    void onReady(PrefillerSession session) {
        EngineCommand.PrefillerAddress address = links.addressOf(session);
        engine.connected(address.host(), address.port(), session.peerIncarnation()); // before anything arrives from it
        links.onReady(session);
        asks.onReady(session);
        fetches.sourcesAt(session).forEach(source -> grantAll(source.fetch));
    }

    void onFrame(PrefillerSession session, ControlFrame frame) {
        switch (frame.getBodyCase()) {
            case CANNOT_DELIVER -> ends.onCannotDeliver(session, frame.getCannotDeliver());
            case CANCEL_CONFIRMED -> ends.onCancelConfirmed(session, frame.getCancelConfirmed());
            case CHECKSUMS -> ends.onChecksums(session, frame.getChecksums());
            case SHARES -> ends.onShares(session, frame.getShares());
            case OFFER -> asks.onOffer(session, frame.getOffer());
            case PREFILLED -> onPrefilled(session, frame.getPrefilled());
            default -> {
                tally.add(MessengerMetric.FRAMES_INVALID, 1);
                sessions.end(session, session.peerName() + " sent " + frame.getBodyCase() + " to a decoder");
            }
        }
    }

    /** Whether the session's end would affect nothing: no request has a part at that prefiller, and none is about to. */
    boolean atRest(PrefillerSession session) {
        return session.waitingFrames.isEmpty()
                && !session.admissionClosed
                && !session.refusedWrite
                && !links.expectsOf(session)
                && !asks.anyAt(session)
                && !fetches.anySourceAt(session);
    }

    /** The next request for that prefiller dials again. */
    void onLeaving(PrefillerSession session) {
        links.retire(session);
    }

    void onEnded(PrefillerSession session, String reason) {
        comparisons.onEnded(session);
        asks.onEnded(session);
        EngineCommand.PrefillerAddress address = links.addressOf(session);
        links.onEnded(session).forEach(engine::prefilled); // the error surfaces when the engine fetches them
        if (address != null && !links.isReadyAt(address)) { // null: it ended while it was dialled
            engine.disconnected(address.host(), address.port());
        }
        sessionEnds.onEnded(session, reason);
    }

    public void onAdmissionClosed(Admission admission, String detail) {
        PrefillerSession session = byAdmission.remove(admission.id());
        if (session == null) {
            return;
        }
        session.admissionClosed = true;
        if (session.state() == Session.State.ENDED) {
            sessionEnds.onProven(session, detail);
            return;
        }
        String reason = "the data paths from " + session.peerName() + " ended: " + detail;
        if (session.refusedWrite) { // this side's reason: the peer has none
            sessions.end(session, reason);
        } else {
            links.retire(session);
            sessionEnds.onPathsEnded(session);
            sessions.endUnlessExplained(session, reason, clock.nowNs()); // its end decides the other sources
        }
    }

    public void onWriteRefused(Admission admission, String detail) {
        tally.add(MessengerMetric.WRITES_REFUSED, 1);
        PrefillerSession session = byAdmission.get(admission.id());
        if (session != null) {
            session.refusedWrite = true;
        }
        engine.log(EngineLog.Level.ERROR, "refused a write from " + admission.peerName() + ": " + detail);
    }

    public int tick(long nowNs) {
        int work = 0;
        ends.beginCycle();
        for (Fetch fetch : fetches.filled()) {
            work += ends.isolated(fetch, () -> ends.verify(fetch));
        }
        for (Fetch late = fetches.takeLate(nowNs); late != null; late = fetches.takeLate(nowNs)) {
            Fetch fetch = late;
            work += ends.isolated(fetch, () -> endLate(fetch));
        }
        for (FetchSource source : fetches.ending()) {
            work += ends.isolated(source.fetch, () -> tick(source, nowNs));
        }
        work += sessionEnds.tick(nowNs);
        work += asks.tick(nowNs);
        grantToSlotless();
        return work;
    }

    /** Gives free imm slots to the sources that have waited longest. */
    private void grantToSlotless() {
        FetchSource next = fetches.nextSlotless();
        while (next != null) {
            grantAll(next.fetch);
            next = next.state() == FetchSource.State.WAITING ? null : fetches.nextSlotless();
        }
    }

    public long nextDeadlineNs(long nowNs) {
        long latestNs = asks.nextDeadlineNs(nowNs + limits.heartbeatNs());
        return sessionEnds.nextDeadlineNs(fetches.nextDeadlineNs(nowNs, latestNs));
    }

    /** The oldest fetches, and what each waits for. */
    public List<FetchRow> rows(int rowsMax, long nowNs) {
        return FetchRows.of(fetches.snapshot(), rowsMax, nowNs);
    }

    public int fetchCount() {
        return fetches.count();
    }

    /** Number of fetches and sources visited by loops over several of them. */
    public long visits() {
        return fetches.visits();
    }

    /** Number of entries that are kept for requests and lost prefillers; none at rest. */
    public int entryCount() {
        long endedSessions = byAdmission.values().stream()
                .filter(session -> session.state() == Session.State.ENDED)
                .count();
        return fetches.entryCount() + verdicts.count() + links.expectedCount() + asks.count() + (int) endedSessions;
    }

    public int windowCount() {
        return fetches.windowCount();
    }

    public int quarantinedPageCount() {
        return fetches.quarantinedPageCount();
    }

    private int endLate(Fetch fetch) {
        String missing = fetch.over() ? "page checksums" : "KV";
        ends.fail(
                fetch,
                FetchFailure.TIME_LIMIT,
                "the " + missing + " of transfer " + fetch.ask.transferId() + " did not arrive from "
                        + fetch.prefillerNames() + " within " + (fetch.deadlineNs - fetch.askedNs) / 1_000_000
                        + " ms (fetch_limit_seconds)");
        return 1;
    }

    private int tick(FetchSource source, long nowNs) {
        if (ends.endIfDrained(source) || ends.endIfCounted(source)) {
            return 1;
        }
        if (source.mustEndBy(nowNs)) {
            sessions.end(
                    source.session,
                    source.session.peerName() + source.overdue() + " within " + limits.silenceLimitNs() / 1_000_000
                            + " ms (silence_limit_seconds)");
            return 1;
        }
        return 0;
    }

    /** Sends a grant to every source that is ready for one. */
    private void grantAll(Fetch fetch) {
        ends.isolated(fetch, () -> grantEach(fetch));
    }

    private int grantEach(Fetch fetch) {
        if (!fetch.covered && !cover(fetch)) {
            return 0;
        }
        for (FetchSource source : fetch.sources) {
            if (!fetch.failing() && source.state() == FetchSource.State.WAITING && source.session.takesWork()) {
                grants.send(source);
            }
        }
        ends.conclude(fetch);
        return 1;
    }

    private void onPrefilled(PrefillerSession session, Prefilled message) {
        TransferKey transfer = new TransferKey(message.getTransferId(), message.getPromptDigest());
        if (links.takeExpected(session, transfer)) {
            engine.prefilled(transfer);
        }
    }

    /** Whether all sources' geometries are known and cover every piece; a fetch with a gap fails before any grant. */
    private boolean cover(Fetch fetch) {
        List<KvGeometry> geometries = new ArrayList<>();
        for (FetchSource source : fetch.sources) {
            if (source.session.peerCache() == null) {
                return false;
            }
            geometries.add(source.session.peerCache().geometry());
        }
        String gap = coverage.gap(geometries, fetch.ask, fetch.prefillerNames());
        if (!gap.isEmpty()) {
            ends.fail(fetch, FetchFailure.UNGRANTABLE, gap);
            return false;
        }
        fetch.covered = true;
        return true;
    }

    public void onWindowFilled(long grantId) {
        ends.onWindowFilled(grantId);
    }

    public void onWindowOvershot(long grantId, long arrivedWeight, long expectedWeight) {
        ends.onWindowOvershot(grantId, arrivedWeight, expectedWeight);
    }
}
