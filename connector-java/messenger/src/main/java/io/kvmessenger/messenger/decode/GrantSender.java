package io.kvmessenger.messenger.decode;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.kv.KvPeer;
import io.kvmessenger.messenger.port.ContextRow;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.messenger.wire.GrantWire;
import io.kvmessenger.specdecode.ContextKinds;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.TransferEngine;

/** Opens the windows of a fetch's sources and sends their grants. Owned by the messenger's thread. */
final class GrantSender {
    private final KvGeometry geometry;
    private final Fetches fetches;
    private final SourceCoverage coverage;
    private final ContextKinds contextKinds;
    private final int checksumInterval;
    private final PrefillerLinks links;
    private final Sessions sessions;
    private final TransferEngine transfer;
    private final Tally tally;
    private final NanoClock clock;
    /** Ids of grants grow over all sessions of this incarnation: none is used again. */
    private long lastGrantId;

    GrantSender(
            Decoder.Cache cache,
            Fetches fetches,
            SourceCoverage coverage,
            PrefillerLinks links,
            Sessions sessions,
            Decoder.Ports ports) {
        this.geometry = cache.geometry();
        this.fetches = fetches;
        this.coverage = coverage;
        this.contextKinds = ContextRow.kinds(cache.context());
        this.checksumInterval = cache.checksumMode().interval();
        this.links = links;
        this.sessions = sessions;
        this.transfer = ports.transfer();
        this.tally = ports.tally();
        this.clock = ports.clock();
    }

    /** Opens a window for the source and sends its grant; where none is to be had it waits for an imm slot. */
    void send(FetchSource source) {
        Session session = source.session;
        Fetch fetch = source.fetch;
        EngineCommand.Fetch ask = fetch.ask;
        String expectedId = source.address.engineId();
        if (!expectedId.isEmpty() && !expectedId.equals(session.peerEngineId)) {
            // Not an error: the two legs meet by transfer id, and the session's geometry was checked afresh.
            tally.add(MessengerMetric.STALE_IDENTITIES, 1);
        }
        // Granted again after a preemption, the prompt is in the prefiller's queue already.
        boolean enqueues = source == fetch.sources.getFirst() && !source.everGranted();
        EngineCommand.Prompt prompt = enqueues ? ask.prompt() : EngineCommand.Prompt.NONE;
        int rows = fetch.context.count();
        long pieces = coverage.pieceCountFrom(KvPeer.of(session).geometry(), ask);
        if (pieces == 0 && (rows == 0 || !mayBeSentBy(session))) {
            links.decline(session, fetch.transfer, prompt); // others send this transfer
            fetches.end(source, FetchSource.State.FILLED);
            return;
        }
        long grantId = lastGrantId + 1;
        ImmWindow window = transfer.openWindow(session.admission, fetch.area, pieces + rows, grantId);
        if (window == null) {
            fetches.awaitSlot(source);
            return;
        }
        lastGrantId = grantId;
        fetches.granted(source, grantId, window, pieces + rows);
        boolean first = fetch.grantedNs == 0;
        fetch.grantedNs = clock.nowNs();
        if (first) {
            tally.observe(MessengerMetric.GRANT_DELAY_SECONDS, (fetch.grantedNs - fetch.askedNs) / 1e9);
        }
        tally.add(MessengerMetric.GRANTS_SENT, 1);
        Grant.Builder grant = GrantWire.encode(
                ask, grantId, window.imm(), contextKinds.requestedBits(fetch.context), checksumInterval, prompt);
        sessions.send(session, ControlFrame.newBuilder().setGrant(grant));
    }

    /** Whether the source waits for a word of these ranks in every transfer. */
    private boolean mayBeSentBy(Session session) {
        return EngineRanks.needing(KvPeer.of(session).geometry(), geometry).intersects(EngineRanks.of(geometry));
    }
}
