package io.kvmessenger.messenger.decode;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.port.ContextRow;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.messenger.wire.GrantWire;
import io.kvmessenger.specdecode.ContextKinds;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.TransferEngine;
import java.util.concurrent.TimeUnit;

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
    /** How long the prefiller is asked to keep a grant without any sign of its prompt; 0 = its own limit. */
    private final long unheardAskedNs;
    /** Grant ids grow over all sessions of this incarnation; none is reused. */
    private long lastGrantId;

    GrantSender(
            Decoder.Cache cache,
            Fetches fetches,
            SourceCoverage coverage,
            PrefillerLinks links,
            Sessions sessions,
            KvPorts ports,
            ProtocolLimits limits) {
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
        this.unheardAskedNs = limits.unheardAskedNs();
    }

    /** Opens a window for the source and sends its grant. If no imm slot is free, the source is queued for one. */
    void send(FetchSource source) {
        PrefillerSession session = source.session;
        Fetch fetch = source.fetch;
        EngineCommand.Fetch ask = fetch.ask;
        String expectedId = source.address.engineId();
        if (!expectedId.isEmpty() && !expectedId.equals(session.peerEngineId)) {
            // Not an error: the two legs meet by transfer id, and the session's geometry has been checked.
            tally.add(MessengerMetric.STALE_IDENTITIES, 1);
        }
        // After a preemption the prompt is in the prefiller's queue already.
        boolean enqueues = source == fetch.sources.getFirst() && !source.everGranted();
        EngineCommand.Prompt prompt = enqueues ? ask.prompt() : EngineCommand.Prompt.NONE;
        int rows = fetch.context.count();
        long pieces = coverage.pieceCountFrom(session.peerCache().geometry(), ask);
        if (pieces == 0 && (rows == 0 || !mayBeSentBy(session))) {
            links.decline(session, fetch.transfer, prompt); // other sources send this transfer
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
        fetches.granted(
                source,
                new SourceGrant(
                        grantId,
                        window,
                        pieces + rows,
                        session.peerCache().geometry().hasDividedPages()));
        boolean first = fetch.grantedNs == 0;
        fetch.grantedNs = clock.nowNs();
        if (first) {
            tally.observe(MessengerMetric.GRANT_DELAY_SECONDS, (fetch.grantedNs - fetch.askedNs) / 1e9);
        }
        tally.add(MessengerMetric.GRANTS_SENT, 1);
        Grant.Builder grant = GrantWire.encode(
                ask, grantId, window.imm(), contextKinds.requestedBits(fetch.context), checksumInterval, prompt);
        grant.setUnheardLimitMillis((int) TimeUnit.NANOSECONDS.toMillis(unheardAskedNs));
        sessions.send(session, ControlFrame.newBuilder().setGrant(grant));
    }

    /** Whether the prefiller expects an answer of these ranks for every transfer. */
    private boolean mayBeSentBy(PrefillerSession session) {
        return EngineRanks.needing(session.peerCache().geometry(), geometry).intersects(EngineRanks.of(geometry));
    }
}
