package io.kvmessenger.messenger.kv;

import com.google.protobuf.ByteString;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.Mismatch;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.PeerTally;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.session.Misfit;
import io.kvmessenger.messenger.session.PeerText;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.wire.FrameVersions;
import io.kvmessenger.transfer.Peer;
import java.util.Optional;

/**
 * A session with a peer's KV cache: what both of its sides keep. Owned by the messenger's thread.
 *
 * <p>It moves nothing: the two halves of the messenger do.
 */
public abstract class KvSession extends Session {
    private final Side own;
    private KvPeer peerCache;
    /** Counts the metrics of this peer once the session is ready. */
    private PeerTally figures = PeerTally.NONE;

    public record Side(KvGeometry geometry, EngineEvents engine, Tally tally) {}

    protected KvSession(Side own, long link, boolean inbound, String peerAddress) {
        super(link, inbound, peerAddress);
        this.own = own;
    }

    /** The peer's cache; null before its geometry was found to fit. */
    public KvPeer peerCache() {
        return peerCache;
    }

    /** Counts the metrics that are labelled by this peer. */
    public PeerTally figures() {
        return figures;
    }

    @Override
    protected final boolean mayLeave() {
        return true;
    }

    @Override
    protected Optional<Misfit> misfit(ByteString peerDescription) {
        KvGeometry peer;
        try {
            peer = KvDescription.decode(peerDescription);
        } catch (IllegalArgumentException e) {
            return Optional.of(
                    unfit("geometry", "the KV geometry of " + peerName() + " is invalid: " + e.getMessage()));
        }
        if (!speaks(FrameVersions.SHARES)
                && (peer.hasDividedPages() || own.geometry().hasDividedPages())) {
            return Optional.of(unfit(
                    "pageShares",
                    "the prefiller's ranks divide their pages (--enable-kv-cache-sharding), which the earlier build of "
                            + (inbound ? "decoder " : "prefiller ") + peerName()
                            + " cannot receive: install the same kv-connector on both sides"));
        }
        Optional<Mismatch> mismatch =
                inbound ? KvDescription.mismatch(own.geometry(), peer) : KvDescription.mismatch(peer, own.geometry());
        if (mismatch.isEmpty()) {
            peerCache = new KvPeer(own.geometry(), peer);
        }
        return mismatch.map(found -> unfit(found.field(), found.sentence()));
    }

    private static Misfit unfit(String field, String sentence) {
        return new Misfit(field, sentence, MessengerMetric.GEOMETRIES_DIFFERENT);
    }

    @Override
    protected void onReady() {
        figures = own.tally().ofPeer(peerEngineId, writtenTo());
        for (String excused : peerCache.excusedSettings(inbound)) {
            own.engine().log(EngineLog.Level.WARNING, peerName() + ": " + PeerText.oneLine(excused));
        }
    }

    /** The peer's handle at the transfer engine, if this side writes to it. */
    protected Optional<Peer> writtenTo() {
        return Optional.empty();
    }

    @Override
    protected final void onEnded(String reason) {
        endTransfers(reason);
        figures.end();
    }

    /** The link is closed: ends what the session's transfers wait for. */
    protected abstract void endTransfers(String reason);
}
