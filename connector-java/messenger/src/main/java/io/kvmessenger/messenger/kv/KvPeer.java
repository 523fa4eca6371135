package io.kvmessenger.messenger.kv;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.session.PeerSubject;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.wire.PeerContextRow;
import io.kvmessenger.specdecode.ContextKinds;
import io.kvmessenger.transfer.RegionDescriptor;
import java.util.List;

/** A peer's KV cache: its geometry, which ranks it serves, and, once a decoder has attached, its memory. */
public final class KvPeer implements PeerSubject {
    private final KvGeometry geometry;
    private final EngineRanks ranks;
    private final EngineRanks needingRanks;
    private List<List<RegionDescriptor>> regions = List.of();
    private List<PeerContextRow> context = List.of();
    private ContextKinds contextKinds = ContextKinds.NONE;

    /** @param own the geometry of this side */
    public KvPeer(KvGeometry own, KvGeometry geometry) {
        this.geometry = geometry;
        this.ranks = EngineRanks.of(geometry);
        this.needingRanks = EngineRanks.needing(own, geometry);
    }

    /** The session's peer; null before its handshake has come so far. */
    public static KvPeer of(Session session) {
        return (KvPeer) session.peerSubject();
    }

    public KvGeometry geometry() {
        return geometry;
    }

    /** The ranks that the peer serves. */
    public EngineRanks ranks() {
        return ranks;
    }

    /** Of the peer's engine, those that need something of this side; each of them speaks of each transfer. */
    public EngineRanks needingRanks() {
        return needingRanks;
    }

    /**
     * A decoder has said how to write to it.
     *
     * @throws IllegalArgumentException when its kinds of context rows cannot be told apart
     */
    public void attached(List<List<RegionDescriptor>> regionsByRank, List<PeerContextRow> contextRows) {
        contextKinds = PeerContextRow.kinds(contextRows);
        regions = regionsByRank;
        context = contextRows;
    }

    /** A decoder's regions, by rank and memory. */
    public List<List<RegionDescriptor>> regions() {
        return regions;
    }

    /** A decoder's context rows. */
    public List<PeerContextRow> context() {
        return context;
    }

    /** Their kinds. */
    public ContextKinds contextKinds() {
        return contextKinds;
    }
}
