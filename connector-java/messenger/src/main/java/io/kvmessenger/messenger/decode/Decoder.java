package io.kvmessenger.messenger.decode;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.pages.GrantedRanges;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.ContextRow;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.EngineRanks;
import io.kvmessenger.messenger.session.Isolation;
import io.kvmessenger.messenger.session.PeerWords;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.AttachWire;
import io.kvmessenger.messenger.wire.Cancel;
import io.kvmessenger.messenger.wire.CancelConfirmed;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.messenger.wire.GrantWire;
import io.kvmessenger.messenger.wire.PeerContextRow;
import io.kvmessenger.messenger.wire.Prefilled;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferEngine;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.IntSupplier;

/**
 * The receiving side: grants pages to prefillers, counts what arrives, and knows for each request when nothing can write
 * to its pages any more.
 *
 * <p>A fetch has a source for each messenger of the prefiller's engine, and each source a window of its own. A source is
 * over only after (a) its expected weight has arrived, (b) the prefiller has said that all its writes have completed and
 * none will follow, or (c) the prefiller's admission is closed. A fetch ends (one {@code arrived} or {@code failed}) when
 * all its sources are over. A timeout alone never ends a source that was granted; it starts a cancellation.
 *
 * <p>Owned by the messenger's thread. It computes no plan: what it expects it knows from its own grant.
 */
public final class Decoder {
    private final KvGeometry geometry;
    private final SourceCoverage coverage;
    /** By rank and memory. */
    private final List<List<RegionDescriptor>> regions;

    private final List<PeerContextRow> context;
    private final TransferEngine transfer;
    private final Sessions sessions;
    private final PrefillerLinks links;
    private final EngineEvents engine;
    private final Tally tally;
    private final NanoClock clock;
    private final ProtocolLimits limits;
    private final PageVerifier verifier;
    private final ArrivalReport arrivals;

    private final Fetches fetches = new Fetches();
    private final Map<Integer, Session> byAdmission = new HashMap<>();
    private long nextCookie = 1;
    /** Fetches that wait although their session is ready: all imm slots are taken. */
    private boolean slotsExhausted;

    public Decoder(
            KvGeometry geometry,
            List<RankMemory> memory,
            List<ContextRow> context,
            TransferEngine transfer,
            Sessions sessions,
            EngineEvents engine,
            Tally tally,
            NanoClock clock,
            ProtocolLimits limits,
            ChecksumMode checksumMode) {
        this.geometry = geometry;
        this.coverage = new SourceCoverage(geometry);
        this.context = context.stream().map(PeerContextRow::of).toList();
        this.regions = memory.stream().map(RankMemory::descriptors).toList();
        this.transfer = transfer;
        this.sessions = sessions;
        this.links = new PrefillerLinks(sessions);
        this.engine = engine;
        this.tally = tally;
        this.clock = clock;
        this.limits = limits;
        this.arrivals = new ArrivalReport(geometry, engine, tally, clock);
        this.verifier = new PageVerifier(checksumMode, memory, context, tally, this::fail);
    }

    public void fetch(EngineCommand.Fetch ask, long nowNs) {
        tally.add(MessengerMetric.FETCHES_STARTED, 1);
        if (fetches.of(ask.request()) != null) {
            engine.log(
                    EngineEvents.Level.ERROR,
                    "fetch for request " + ask.request() + " was asked for twice; the second is ignored");
            return;
        }
        long limitNs = ask.limitNs() > 0 ? ask.limitNs() : limits.fetchLimitNs();
        Fetch fetch = new Fetch(ask, nowNs, nowNs + limitNs);
        fetches.add(fetch);
        String unfit = coverage.unfit(ask);
        if (unfit.isEmpty()) {
            try {
                fetch.area = GrantedRanges.of(geometry, regions, ask.pages(), context, ask.contextSlot());
            } catch (IllegalArgumentException e) {
                unfit = "the engine gave pages that cannot be granted: " + e.getMessage();
            }
        }
        if (!unfit.isEmpty()) {
            fail(fetch, unfit);
            return;
        }
        for (EngineCommand.PrefillerAddress address : ask.prefillers()) {
            Session session = links.at(address, nowNs);
            links.heard(session, fetch.transfer);
            FetchSource source = new FetchSource(fetch, address, nextCookie++, session);
            fetches.add(source);
        }
        grantAll(fetch);
    }

    /** Tells prefillers that no grant will come; if one cannot be reached its own limit ends the wait. */
    public void decline(EngineCommand.Decline decline, long nowNs) {
        for (EngineCommand.PrefillerAddress address : decline.prefillers()) {
            links.decline(links.at(address, nowNs), decline.transfer(), EngineCommand.Prompt.NONE);
        }
    }

    /** Tells prefillers that a queued request will fetch; one that cannot be reached keeps its pages for its own limit. */
    public void expect(EngineCommand.Expect expect, long nowNs) {
        for (EngineCommand.PrefillerAddress address : expect.prefillers()) {
            links.expect(links.at(address, nowNs), expect.transfer());
        }
    }

    public void abandon(String request) {
        Fetch fetch = fetches.of(request);
        if (fetch == null) {
            return; // it has ended; the event is on its way to the engine
        }
        tally.add(MessengerMetric.FETCHES_ABANDONED, 1);
        fail(fetch, "the engine gave the request up");
    }

    /** Gives every fetch up; those that were granted end when it is known that nothing writes any more. */
    public void shutDown(String reason) {
        fetches.snapshot().forEach(fetch -> fail(fetch, reason));
    }

    public void onAdmitting(Session session, Attach.Builder attach) {
        session.admission = transfer.admit(session.peerName());
        byAdmission.put(session.admission.id(), session);
        AttachWire.encode(attach, transfer.address(), session.admission, regions);
        PeerContextRow.encode(attach, context);
    }

    public void onReady(Session session) {
        links.onReady(session);
        fetches.sourcesAt(session).forEach(source -> grantAll(source.fetch));
    }

    public void onFrame(Session session, ControlFrame frame) {
        switch (frame.getBodyCase()) {
            case CANNOT_DELIVER -> onCannotDeliver(session, frame.getCannotDeliver());
            case CANCEL_CONFIRMED -> onCancelConfirmed(session, frame.getCancelConfirmed());
            case CHECKSUMS -> onChecksums(session, frame.getChecksums());
            case PREFILLED -> onPrefilled(session, frame.getPrefilled());
            default -> {
                tally.add(MessengerMetric.FRAMES_INVALID, 1);
                sessions.end(session, session.peerName() + " sent " + frame.getBodyCase() + " to a decoder");
            }
        }
    }

    public void onEnded(Session session, String reason) {
        links.onEnded(session).forEach(engine::prefilled); // what is wrong they will hear when they fetch
        boolean proofNeeded = session.admission != null && !session.admissionClosed;
        for (FetchSource source : fetches.sourcesAt(session)) {
            if (source.over()) {
                failIfUntold(source, reason);
            } else {
                if (source.holdsWindow() && proofNeeded) {
                    source.state = FetchSource.State.AWAITING_PROOF;
                } else {
                    source.end(FetchSource.State.QUIET);
                }
                fail(source.fetch, reason);
                tellQuarantined(source.fetch);
            }
        }
        if (proofNeeded) {
            transfer.revoke(session.admission);
        }
    }

    /** All has arrived from a source, and what it should be will never be told. */
    private void failIfUntold(FetchSource source, String reason) {
        if (!verifier.told(source)) {
            fail(source.fetch, reason);
        }
    }

    /** The engine hears of the first source that has to be waited for without its word; its end may be far away. */
    private void tellQuarantined(Fetch fetch) {
        if (!fetch.quarantineTold && fetch.awaitsProof()) {
            fetch.quarantineTold = true;
            engine.quarantined(fetch.ask.request(), fetch.failure);
        }
    }

    public void onAdmissionClosed(Admission admission, String detail) {
        Session session = byAdmission.remove(admission.id());
        if (session == null) {
            return;
        }
        session.admissionClosed = true;
        if (session.state != Session.State.ENDED) {
            sessions.end(session, "the data paths from " + session.peerName() + " ended: " + detail);
            return; // onEnded ends its sources: the proof is here already
        }
        for (FetchSource source : fetches.sourcesAt(session)) {
            if (!source.over()) {
                source.end(FetchSource.State.QUIET);
                conclude(source.fetch);
            }
        }
    }

    public void onWriteRefused(Admission admission, String detail) {
        tally.add(MessengerMetric.WRITES_REFUSED, 1);
        engine.log(EngineEvents.Level.ERROR, "refused a write from " + admission.peerName() + ": " + detail);
    }

    /** All that was expected of a source is in: nothing of it will follow, whatever else was going on. */
    public void onWindowFilled(long cookie) {
        FetchSource source = fetches.source(cookie);
        if (source != null && !source.over() && !endIfDrained(source)) {
            source.end(FetchSource.State.FILLED);
            conclude(source.fetch);
        }
    }

    public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {
        FetchSource source = fetches.source(cookie);
        if (source == null || source.over()) {
            return;
        }
        tally.add(MessengerMetric.WINDOWS_OVERSHOT, 1);
        sessions.end(
                source.session,
                "transfer " + source.fetch.ask.transferId() + " got " + arrivedWeight + " pages where " + expectedWeight
                        + " were expected");
    }

    public int tick(long nowNs) {
        int work = 0;
        for (Fetch fetch : fetches.snapshot()) {
            work += isolated(fetch, () -> tick(fetch, nowNs));
        }
        if (slotsExhausted) {
            slotsExhausted = false;
            fetches.snapshot().forEach(this::grantAll);
        }
        return work;
    }

    public long nextDeadlineNs(long nowNs) {
        return fetches.nextDeadlineNs(nowNs, nowNs + limits.heartbeatNs());
    }

    public int fetchCount() {
        return fetches.all().size();
    }

    public int windowCount() {
        return fetches.windowCount();
    }

    public int quarantinedPageCount() {
        return fetches.quarantinedPageCount();
    }

    private int tick(Fetch fetch, long nowNs) {
        int work = verify(fetch);
        if (!fetch.ended && !fetch.failing() && nowNs - fetch.deadlineNs >= 0) {
            String missing = fetch.over() ? "page checksums" : "KV";
            fail(
                    fetch,
                    "the " + missing + " of transfer " + fetch.ask.transferId() + " did not arrive from "
                            + fetch.prefillerNames() + " within " + (fetch.deadlineNs - fetch.askedNs) / 1_000_000
                            + " ms (fetch_limit_seconds)");
            work++;
        }
        for (FetchSource source : fetch.sources) {
            if (endIfDrained(source)) {
                work++;
            } else if (source.mustEndBy(nowNs)) {
                sessions.end(
                        source.session,
                        source.session.peerName() + source.overdue() + " within " + limits.silenceLimitNs() / 1_000_000
                                + " ms (silence_limit_seconds)");
                work++;
            }
        }
        return work;
    }

    /** Compares some pages of a fetch that has all arrived. Returns whether there was something to do. */
    private int verify(Fetch fetch) {
        if (fetch.ended || fetch.failing() || !fetch.covered || !fetch.filled()) {
            return 0;
        }
        long bytes = verifier.advance(fetch);
        conclude(fetch);
        return bytes > 0 || fetch.ended ? 1 : 0;
    }

    /** Grants to every source that can be granted to now. */
    private void grantAll(Fetch fetch) {
        isolated(fetch, () -> grantEach(fetch));
    }

    private int grantEach(Fetch fetch) {
        if (!fetch.covered && !cover(fetch)) {
            return 0;
        }
        for (FetchSource source : fetch.sources) {
            if (!fetch.failing() && source.state == FetchSource.State.WAITING && source.session.ready()) {
                grant(source);
            }
        }
        conclude(fetch);
        return 1;
    }

    private int isolated(Fetch fetch, IntSupplier work) {
        return Isolation.run(work, bug -> {
            if (fetch.failing()) {
                return 0;
            }
            tally.add(MessengerMetric.FAULTS_CONTAINED, 1);
            fail(fetch, "a bug in the messenger, met by transfer " + fetch.ask.transferId() + ": " + bug);
            return 1;
        });
    }

    /** Whether all sources' geometries are known and leave no gap; a fetch with a gap fails before it is granted. */
    private boolean cover(Fetch fetch) {
        List<KvGeometry> geometries = new ArrayList<>();
        for (FetchSource source : fetch.sources) {
            if (source.session.peerGeometry == null) {
                return false;
            }
            geometries.add(source.session.peerGeometry);
        }
        String gap = coverage.gap(geometries, fetch.ask, fetch.prefillerNames());
        if (!gap.isEmpty()) {
            fail(fetch, gap);
            return false;
        }
        fetch.covered = true;
        return true;
    }

    private void grant(FetchSource source) {
        Session session = source.session;
        Fetch fetch = source.fetch;
        EngineCommand.Fetch ask = fetch.ask;
        String expectedId = source.address.engineId();
        if (!expectedId.isEmpty() && !expectedId.equals(session.peerEngineId)) {
            // Not an error: the two legs meet by transfer id, and the session's geometry was checked afresh.
            tally.add(MessengerMetric.STALE_IDENTITIES, 1);
        }
        // Granted again after a preemption, the prompt is in the prefiller's queue already.
        boolean enqueues = source == fetch.sources.getFirst() && !source.everGranted;
        EngineCommand.Prompt prompt = enqueues ? ask.prompt() : EngineCommand.Prompt.NONE;
        int rows = ask.contextSlot() == ContextRow.NO_SLOT ? 0 : context.size();
        long pieces = coverage.pieceCountFrom(session.peerGeometry, ask);
        if (pieces == 0 && (rows == 0 || !mayBeSentBy(session))) {
            links.decline(session, fetch.transfer, prompt); // others send this transfer
            source.end(FetchSource.State.FILLED);
            return;
        }
        ImmWindow window = transfer.openWindow(session.admission, fetch.area, pieces + rows, source.cookie);
        if (window == null) {
            slotsExhausted = true;
            return;
        }
        source.granted(window, pieces + rows);
        fetch.grantedNs = clock.nowNs();
        tally.add(MessengerMetric.GRANTS_SENT, 1);
        send(source, prompt);
    }

    /** Whether the source waits for a word of these ranks in every transfer. */
    private boolean mayBeSentBy(Session session) {
        return EngineRanks.needing(session.peerGeometry, geometry).intersects(EngineRanks.of(geometry));
    }

    private void send(FetchSource source, EngineCommand.Prompt prompt) {
        Grant.Builder grant = GrantWire.encode(source.fetch.ask, source.imm, verifier.interval(), prompt);
        sessions.send(source.session, ControlFrame.newBuilder().setGrant(grant));
    }

    private void onCannotDeliver(Session session, CannotDeliver message) {
        TransferKey transfer = new TransferKey(message.getTransferId(), message.getPromptDigest());
        FetchSource source = find(session, transfer.id(), message.getImm());
        boolean preempted = message.getReason() == CannotDeliver.Reason.PREEMPTED;
        if (source == null) { // its last write and this message crossed a cancellation, or its last byte had landed
            if (preempted) {
                declineNextAttempt(session, transfer);
            }
            return;
        }
        boolean again = preempted && !source.fetch.failing();
        if (!drain(source, message.getPostedWeight(), again)) {
            return;
        }
        if (!again) {
            fail(source.fetch, PeerWords.fit(message.getSentence()));
        }
        endIfDrained(source);
    }

    /** All of a preempted prompt is here: its next attempt need not wait for a grant, unless others of its name do. */
    private void declineNextAttempt(Session session, TransferKey transfer) {
        boolean mayBeSeveral = transfer.tellsPrompt() && context.isEmpty(); // each request then takes a word of its own
        if (mayBeSeveral
                || fetches.sourcesAt(session).stream().noneMatch(source -> source.isOf(transfer) && !source.over())) {
            links.decline(session, transfer, EngineCommand.Prompt.NONE);
        }
    }

    /** The prefiller posts nothing more; its word counts once. What it has posted is over when it has been counted. */
    private boolean drain(FetchSource source, long postedWeight, boolean again) {
        if (source.state == FetchSource.State.DRAINING) {
            return false;
        }
        if (postedWeight < 0 || postedWeight > source.expectedWeight) {
            tally.add(MessengerMetric.FRAMES_INVALID, 1);
            sessions.end(
                    source.session,
                    source.session.peerName() + " says that it posted " + postedWeight + " pages, at most "
                            + source.expectedWeight + " were granted");
            return false;
        }
        source.drain(postedWeight, again, clock.nowNs() + limits.silenceLimitNs());
        return true;
    }

    /** A source whose writes have all been counted is over: nothing of them can land any more. */
    private boolean endIfDrained(FetchSource source) {
        if (source.state != FetchSource.State.DRAINING || source.arrivedWeight() < source.postedWeight) {
            return false;
        }
        if (source.arrivedWeight() > source.postedWeight) {
            onWindowOvershot(source.cookie, source.arrivedWeight(), source.postedWeight);
        } else if (source.grantAgain && source.hasAll() && verifier.told(source)) {
            source.end(FetchSource.State.FILLED);
            declineNextAttempt(source.session, source.fetch.transfer);
            conclude(source.fetch);
        } else if (source.grantAgain) {
            source.end(FetchSource.State.WAITING);
            tally.add(MessengerMetric.FETCHES_REGRANTED, 1);
            grant(source);
        } else {
            source.end(FetchSource.State.QUIET);
            conclude(source.fetch);
        }
        return true;
    }

    private void onCancelConfirmed(Session session, CancelConfirmed message) {
        FetchSource source = find(session, message.getTransferId(), message.getImm());
        if (source == null) {
            return;
        }
        long postedWeight = message.hasPostedWeight() ? message.getPostedWeight() : source.expectedWeight;
        if (drain(source, postedWeight, false)) {
            tally.add(MessengerMetric.CANCELS_CONFIRMED, 1);
            fail(source.fetch, source.session.peerName() + " confirmed a cancellation that was not asked for");
            endIfDrained(source);
        }
    }

    private void onPrefilled(Session session, Prefilled message) {
        TransferKey transfer = new TransferKey(message.getTransferId(), message.getPromptDigest());
        if (links.heard(session, transfer)) {
            engine.prefilled(transfer);
        }
    }

    private void onChecksums(Session session, Checksums message) {
        for (FetchSource source : fetches.sourcesAt(session)) {
            boolean meant = source.imm == message.getImm()
                    && source.fetch.ask.transferId().equals(message.getTransferId())
                    && (source.state == FetchSource.State.GRANTED || source.state == FetchSource.State.FILLED);
            if (meant) {
                String wrong = verifier.add(source, message);
                if (!wrong.isEmpty()) {
                    tally.add(MessengerMetric.FRAMES_INVALID, 1);
                    sessions.end(session, session.peerName() + " sent " + wrong);
                }
                return;
            }
        }
    }

    /**
     * The source that the prefiller means: one that may be written to, or that has all and has not been told what the pages
     * hold. An answer to an earlier grant of the same transfer finds nothing.
     */
    private FetchSource find(Session session, String transferId, int imm) {
        for (FetchSource source : fetches.sourcesAt(session)) {
            boolean untold = source.state == FetchSource.State.FILLED && !verifier.told(source);
            if ((source.holdsWindow() || untold)
                    && source.imm == imm
                    && source.fetch.transfer.id().equals(transferId)) {
                return source;
            }
        }
        return null;
    }

    /** The fetch will fail, as soon as no source can write any more; the first reason counts. */
    private void fail(Fetch fetch, String reason) {
        if (!fetch.failing()) {
            fetch.failure = reason;
            fetch.sources.forEach(this::giveUp);
        }
        conclude(fetch);
    }

    private void giveUp(FetchSource source) {
        switch (source.state) {
            case WAITING -> {
                source.end(FetchSource.State.QUIET);
                links.decline(source.session, source.fetch.transfer, EngineCommand.Prompt.NONE);
            }
            case GRANTED -> {
                source.state = FetchSource.State.CANCELLING;
                source.confirmDeadlineNs = clock.nowNs() + limits.silenceLimitNs();
                tally.add(MessengerMetric.CANCELS_SENT, 1);
                sessions.send(
                        source.session,
                        ControlFrame.newBuilder()
                                .setCancel(Cancel.newBuilder()
                                        .setTransferId(source.fetch.transfer.id())
                                        .setPromptDigest(source.fetch.transfer.digest())
                                        .setImm(source.window.imm())));
            }
            case DRAINING -> {
                if (source.grantAgain) { // the prompt's next attempt waits for a word
                    source.grantAgain = false;
                    links.decline(source.session, source.fetch.transfer, EngineCommand.Prompt.NONE);
                }
            }
            case CANCELLING, AWAITING_PROOF, FILLED, QUIET -> {}
        }
    }

    /** Tells the engine how the fetch ended, once all its sources are over. */
    private void conclude(Fetch fetch) {
        if (fetch.ended || !fetch.over() || !(fetch.failing() || verifier.verified(fetch))) {
            return;
        }
        fetch.ended = true;
        fetches.remove(fetch);
        if (fetch.failing()) {
            tally.add(MessengerMetric.FETCHES_FAILED, 1);
            engine.failed(fetch.ask.request(), fetch.failure);
        } else if (fetch.covered && fetch.filled()) {
            arrivals.arrived(fetch);
        } else {
            throw new AssertionError("the sources of transfer " + fetch.ask.transferId() + " are over, and not filled");
        }
    }
}
