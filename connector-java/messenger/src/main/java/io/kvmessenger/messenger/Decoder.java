package io.kvmessenger.messenger;

import io.kvmessenger.kvlayout.ExpectedWrites;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.Cancel;
import io.kvmessenger.messenger.wire.CancelConfirmed;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Decline;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferEngine;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The receiving side: grants pages to prefillers, counts what arrives, and knows for each request when nothing can write
 * to its pages any more.
 *
 * <p>A fetch ends (one {@code arrived} or {@code failed}) only after (a) its expected weight has arrived, (b) the
 * prefiller has said that all its writes have completed and none will follow, or (c) the prefiller's admission is
 * closed. A timeout alone never ends a fetch that was granted; it starts a cancellation.
 *
 * <p>Owned by the messenger's thread. It computes no plan: what it expects it knows from its own grant.
 */
final class Decoder {
    private final KvGeometry geometry;
    /** By rank and memory. */
    private final List<List<RegionDescriptor>> regions;

    private final List<PeerContextRow> context;
    private final TransferEngine transfer;
    private final Sessions sessions;
    private final EngineEvents engine;
    private final Tally tally;
    private final NanoClock clock;
    private final ProtocolLimits limits;

    private final Map<String, Fetch> byRequest = new LinkedHashMap<>();
    private final Map<Long, Fetch> byCookie = new HashMap<>();
    private final Map<String, Session> byAddress = new HashMap<>();
    private final Map<Integer, Session> byAdmission = new HashMap<>();
    private long nextCookie = 1;
    /** Fetches that wait although their session is ready: all imm slots are taken. */
    private boolean slotsExhausted;

    Decoder(
            KvGeometry geometry,
            List<RankMemory> memory,
            List<ContextRow> context,
            TransferEngine transfer,
            Sessions sessions,
            EngineEvents engine,
            Tally tally,
            NanoClock clock,
            ProtocolLimits limits) {
        this.geometry = geometry;
        this.context = context.stream().map(ContextRow::descriptor).toList();
        this.regions = memory.stream().map(RankMemory::descriptors).toList();
        this.transfer = transfer;
        this.sessions = sessions;
        this.engine = engine;
        this.tally = tally;
        this.clock = clock;
        this.limits = limits;
    }

    void fetch(EngineCommand.Fetch ask, long nowNs) {
        tally.add(MessengerMetric.FETCHES_STARTED, 1);
        if (byRequest.containsKey(ask.request())) {
            engine.log(
                    EngineEvents.Level.ERROR,
                    "fetch for request " + ask.request() + " was asked for twice; the second is ignored");
            return;
        }
        long limitNs = ask.limitNs() > 0 ? ask.limitNs() : limits.fetchLimitNs();
        Fetch fetch = new Fetch(ask, nextCookie++, nowNs, nowNs + limitNs);
        byRequest.put(ask.request(), fetch);
        byCookie.put(fetch.cookie, fetch);
        int expectedPages = pageCount(ask.promptTokens()) - ask.firstToken() / geometry.pageTokens();
        if (ask.firstToken() % geometry.pageTokens() != 0
                || ask.pages().length != expectedPages
                || (expectedPages == 0 && ask.contextSlot() == PeerContextRow.NO_SLOT)) {
            fail(
                    fetch,
                    "the engine gave " + ask.pages().length + " pages for tokens " + ask.firstToken() + " to "
                            + ask.promptTokens() + ", which need " + expectedPages);
            return;
        }
        try {
            fetch.area = GrantedRanges.of(geometry, regions, ask.pages(), context, ask.contextSlot());
        } catch (IllegalArgumentException e) {
            fail(fetch, "the engine gave pages that cannot be granted: " + e.getMessage());
            return;
        }
        Session session = sessionAt(ask.prefillerHost(), ask.prefillerPort(), nowNs);
        fetch.session = session;
        if (session.ready()) {
            grant(fetch);
        }
    }

    /** Tells a prefiller that no grant will come; if it cannot be reached its own limit ends the wait. */
    void decline(EngineCommand.Decline decline, long nowNs) {
        Session session = sessionAt(decline.prefillerHost(), decline.prefillerPort(), nowNs);
        if (session.ready()) {
            sendDecline(session, decline.transferId());
        } else {
            session.declines.add(decline.transferId());
        }
    }

    void abandon(String request) {
        Fetch fetch = byRequest.get(request);
        if (fetch == null) {
            return; // it has ended; the event is on its way to the engine
        }
        tally.add(MessengerMetric.FETCHES_ABANDONED, 1);
        cancel(fetch, "the engine gave the request up");
    }

    /** Gives every fetch up; those that were granted end when it is known that nothing writes any more. */
    void shutDown(String reason) {
        List.copyOf(byRequest.values()).forEach(fetch -> cancel(fetch, reason));
    }

    void onAdmitting(Session session, Attach.Builder attach) {
        session.admission = transfer.admit(session.peerName());
        byAdmission.put(session.admission.id(), session);
        AttachWire.encode(attach, transfer.address(), session.admission, regions);
        PeerContextRow.encode(attach, context);
    }

    void onReady(Session session) {
        session.declines.forEach(transferId -> sendDecline(session, transferId));
        session.declines.clear();
        for (Fetch fetch : List.copyOf(byRequest.values())) {
            if (fetch.session == session && fetch.state == Fetch.State.WAITING) {
                grant(fetch);
            }
        }
    }

    void onFrame(Session session, ControlFrame frame) {
        switch (frame.getBodyCase()) {
            case CANNOT_DELIVER -> onCannotDeliver(session, frame.getCannotDeliver());
            case CANCEL_CONFIRMED -> onCancelConfirmed(session, frame.getCancelConfirmed());
            default -> {
                tally.add(MessengerMetric.FRAMES_INVALID, 1);
                sessions.end(session, session.peerName() + " sent " + frame.getBodyCase() + " to a decoder");
            }
        }
    }

    void onEnded(Session session, String reason) {
        byAddress.values().remove(session);
        boolean proofNeeded = session.admission != null && !session.admissionClosed;
        for (Fetch fetch : List.copyOf(byRequest.values())) {
            if (fetch.session == session) {
                if (fetch.failure.isEmpty()) {
                    fetch.failure = reason;
                }
                if (fetch.holdsWindow() && proofNeeded) {
                    fetch.state = Fetch.State.AWAITING_PROOF;
                    engine.quarantined(fetch.ask.request(), fetch.failure);
                } else {
                    fail(fetch, fetch.failure);
                }
            }
        }
        if (proofNeeded) {
            transfer.revoke(session.admission);
        }
    }

    void onAdmissionClosed(Admission admission, String detail) {
        Session session = byAdmission.remove(admission.id());
        if (session == null) {
            return;
        }
        session.admissionClosed = true;
        if (session.state != Session.State.ENDED) {
            sessions.end(session, "the data paths from " + session.peerName() + " ended: " + detail);
            return; // onEnded fails its fetches: the proof is here already
        }
        for (Fetch fetch : List.copyOf(byRequest.values())) {
            if (fetch.session == session) {
                fail(fetch, fetch.failure);
            }
        }
    }

    void onWriteRefused(Admission admission, String detail) {
        tally.add(MessengerMetric.WRITES_REFUSED, 1);
        engine.log(EngineEvents.Level.ERROR, "refused a write from " + admission.peerName() + ": " + detail);
    }

    void onWindowFilled(long cookie) {
        Fetch fetch = byCookie.get(cookie);
        if (fetch == null) {
            return;
        }
        long nowNs = clock.nowNs();
        if (!fetch.failure.isEmpty()) {
            fail(fetch, fetch.failure); // all expected writes are in: nothing will follow, whatever the reason was
            return;
        }
        int pages = fetch.ask.pages().length;
        long bytes = bytesOf(pages);
        tally.add(MessengerMetric.FETCHES_ARRIVED, 1);
        tally.add(MessengerMetric.PAGES_RECEIVED, (long) pages * layerCount());
        tally.add(MessengerMetric.BYTES_RECEIVED, bytes);
        tally.observe(MessengerMetric.FETCH_SECONDS, (nowNs - fetch.askedNs) / 1e9);
        forget(fetch, true);
        engine.arrived(fetch.ask.request(), pages);
        engine.timeline(new FetchTimeline(
                fetch.ask.request(),
                fetch.ask.transferId(),
                pages,
                bytes,
                fetch.askedNs,
                fetch.grantedNs,
                nowNs,
                fetch.session.peerName()));
    }

    void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {
        Fetch fetch = byCookie.get(cookie);
        if (fetch == null) {
            return;
        }
        tally.add(MessengerMetric.WINDOWS_OVERSHOT, 1);
        fetch.failure = "transfer " + fetch.ask.transferId() + " got " + arrivedWeight + " pages where "
                + expectedWeight + " were expected";
        sessions.end(fetch.session, fetch.failure);
    }

    int tick(long nowNs) {
        int work = 0;
        for (Fetch fetch : List.copyOf(byRequest.values())) {
            work += tick(fetch, nowNs);
        }
        if (slotsExhausted) {
            slotsExhausted = false;
            byRequest.values().stream()
                    .filter(f -> f.state == Fetch.State.WAITING && f.session.ready())
                    .toList()
                    .forEach(this::grant);
        }
        return work;
    }

    long nextDeadlineNs(long nowNs) {
        long earliest = nowNs + limits.heartbeatNs();
        for (Fetch fetch : byRequest.values()) {
            long due = fetch.state == Fetch.State.CANCELLING ? fetch.confirmDeadlineNs : fetch.deadlineNs;
            if (fetch.state != Fetch.State.AWAITING_PROOF && due - earliest < 0) {
                earliest = due;
            }
        }
        return earliest;
    }

    int fetchCount() {
        return byRequest.size();
    }

    int windowCount() {
        return (int) byRequest.values().stream().filter(Fetch::holdsWindow).count();
    }

    int quarantinedPageCount() {
        return byRequest.values().stream()
                .filter(f -> f.holdsWindow() && !f.failure.isEmpty())
                .mapToInt(f -> f.ask.pages().length)
                .sum();
    }

    private int tick(Fetch fetch, long nowNs) {
        switch (fetch.state) {
            case WAITING, GRANTED -> {
                if (nowNs - fetch.deadlineNs >= 0) {
                    cancel(
                            fetch,
                            "the KV of transfer " + fetch.ask.transferId() + " did not arrive from "
                                    + fetch.session.peerName() + " within "
                                    + (fetch.deadlineNs - fetch.askedNs) / 1_000_000
                                    + " ms (fetch_limit_seconds)");
                    return 1;
                }
            }
            case CANCELLING -> {
                if (nowNs - fetch.confirmDeadlineNs >= 0) {
                    sessions.end(
                            fetch.session,
                            fetch.session.peerName() + " did not confirm a cancellation within "
                                    + limits.silenceLimitNs() / 1_000_000 + " ms (silence_limit_seconds)");
                    return 1;
                }
            }
            case AWAITING_PROOF, ENDED -> {}
        }
        return 0;
    }

    private void grant(Fetch fetch) {
        Session session = fetch.session;
        EngineCommand.Fetch ask = fetch.ask;
        if (!ask.prefillerEngineId().isEmpty() && !ask.prefillerEngineId().equals(session.peerEngineId)) {
            // Not an error: the two legs meet by transfer id, and the session's geometry was checked afresh.
            tally.add(MessengerMetric.STALE_IDENTITIES, 1);
        }
        int rows = ask.contextSlot() == PeerContextRow.NO_SLOT ? 0 : context.size();
        long expected = expectedPieces(session, ask) + rows;
        fetch.window = transfer.openWindow(session.admission, fetch.area, expected, fetch.cookie);
        if (fetch.window == null) {
            slotsExhausted = true;
            return;
        }
        fetch.state = Fetch.State.GRANTED;
        fetch.grantedNs = clock.nowNs();
        tally.add(MessengerMetric.GRANTS_SENT, 1);
        Grant.Builder grant = Grant.newBuilder()
                .setTransferId(ask.transferId())
                .setImm(fetch.window.imm())
                .setPromptTokens(ask.promptTokens())
                .setFirstToken(ask.firstToken())
                .setContextSlot(ask.contextSlot() + 1);
        for (int page : ask.pages()) {
            grant.addPageIndices(page);
        }
        if (!fetch.everGranted) { // granted again after a preemption, the prompt is in the prefiller's queue already
            for (int token : ask.promptTokenIds()) {
                grant.addPromptTokenIds(token);
            }
        }
        fetch.everGranted = true;
        sessions.send(session, ControlFrame.newBuilder().setGrant(grant));
    }

    /** What all ranks together will receive. */
    private long expectedPieces(Session session, EngineCommand.Fetch ask) {
        long expected = 0;
        for (int rankIndex = 0; rankIndex < geometry.ranks().size(); rankIndex++) {
            expected += ExpectedWrites.pieceCount(
                    session.peerGeometry, geometry, rankIndex, ask.firstToken(), ask.promptTokens());
        }
        return expected;
    }

    private Session sessionAt(String host, int port, long nowNs) {
        return byAddress.computeIfAbsent(host + ":" + port, address -> sessions.dial(host, port, nowNs));
    }

    private void sendDecline(Session session, String transferId) {
        sessions.send(
                session,
                ControlFrame.newBuilder().setDecline(Decline.newBuilder().setTransferId(transferId)));
    }

    private void cancel(Fetch fetch, String reason) {
        switch (fetch.state) {
            case WAITING -> fail(fetch, reason);
            case GRANTED -> {
                fetch.failure = reason;
                fetch.state = Fetch.State.CANCELLING;
                fetch.confirmDeadlineNs = clock.nowNs() + limits.silenceLimitNs();
                tally.add(MessengerMetric.CANCELS_SENT, 1);
                sessions.send(
                        fetch.session,
                        ControlFrame.newBuilder()
                                .setCancel(Cancel.newBuilder()
                                        .setTransferId(fetch.ask.transferId())
                                        .setImm(fetch.window.imm())));
            }
            case CANCELLING, AWAITING_PROOF, ENDED -> {}
        }
    }

    private void onCannotDeliver(Session session, CannotDeliver message) {
        Fetch fetch = find(session, message.getTransferId(), message.getImm());
        if (fetch == null) {
            return; // its last write and this message crossed a cancellation
        }
        boolean preempted = message.getReason() == CannotDeliver.Reason.PREEMPTED;
        if (preempted && fetch.failure.isEmpty()) {
            fetch.window.close(true);
            fetch.window = null;
            fetch.state = Fetch.State.WAITING;
            tally.add(MessengerMetric.FETCHES_REGRANTED, 1);
            grant(fetch);
        } else {
            fail(fetch, fetch.failure.isEmpty() ? message.getSentence() : fetch.failure);
        }
    }

    private void onCancelConfirmed(Session session, CancelConfirmed message) {
        Fetch fetch = find(session, message.getTransferId(), message.getImm());
        if (fetch != null) {
            tally.add(MessengerMetric.CANCELS_CONFIRMED, 1);
            fail(fetch, fetch.failure);
        }
    }

    /** The fetch that the prefiller means: an answer to an earlier grant of the same transfer finds nothing. */
    private Fetch find(Session session, String transferId, int imm) {
        for (Fetch fetch : byRequest.values()) {
            if (fetch.session == session
                    && fetch.holdsWindow()
                    && fetch.window.imm() == imm
                    && fetch.ask.transferId().equals(transferId)) {
                return fetch;
            }
        }
        return null;
    }

    private void fail(Fetch fetch, String reason) {
        tally.add(MessengerMetric.FETCHES_FAILED, 1);
        forget(fetch, true);
        engine.failed(fetch.ask.request(), reason);
    }

    private void forget(Fetch fetch, boolean drained) {
        byRequest.remove(fetch.ask.request());
        byCookie.remove(fetch.cookie);
        fetch.state = Fetch.State.ENDED;
        if (fetch.window != null) {
            fetch.window.close(drained);
            fetch.window = null;
        }
    }

    private long bytesOf(int pageCount) {
        long bytes = 0;
        for (RankGeometry rank : geometry.ranks()) {
            for (LayerGeometry layer : rank.layers()) {
                bytes += (long) layer.pageBytes() * pageCount;
            }
        }
        return bytes;
    }

    /** Layers of all ranks together. */
    private int layerCount() {
        return geometry.ranks().stream().mapToInt(rank -> rank.layers().size()).sum();
    }

    private int pageCount(int tokens) {
        return Math.ceilDiv(tokens, geometry.pageTokens());
    }
}
