package io.kvmessenger.messenger.kv;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.ModelSettings;
import io.kvmessenger.messenger.wire.PeerContextRow;
import io.kvmessenger.specdecode.ContextKinds;
import io.kvmessenger.transfer.RegionDescriptor;
import java.util.List;

/** A peer's KV cache: its geometry, the ranks it serves, and, once a decoder has attached, its memory. */
public final class KvPeer {
    private final KvGeometry own;
    private final KvGeometry geometry;
    private final EngineRanks ranks;
    private final EngineRanks needingRanks;
    private List<List<RegionDescriptor>> regions = List.of();
    private List<PeerContextRow> context = List.of();
    private ContextKinds contextKinds = ContextKinds.NONE;

    /** @param own the geometry of this side */
    public KvPeer(KvGeometry own, KvGeometry geometry) {
        this.own = own;
        this.geometry = geometry;
        this.ranks = EngineRanks.of(geometry);
        this.needingRanks = EngineRanks.needing(own, geometry);
    }

    public KvGeometry geometry() {
        return geometry;
    }

    /**
     * One sentence for each setting that differs between the two sides and that both operators have excused.
     *
     * @param receives whether the peer is the side that is written to
     */
    public List<String> excusedSettings(boolean receives) {
        return (receives
                        ? ModelSettings.excused(own.settings(), geometry.settings())
                        : ModelSettings.excused(geometry.settings(), own.settings()))
                .stream()
                        .map(found ->
                                found.difference() + ", which settings_may_differ excuses: KV is exchanged as if both"
                                        + " computed the same")
                        .toList();
    }

    public EngineRanks ranks() {
        return ranks;
    }

    /** The ranks of the peer's engine that need something of this side; each of them answers each transfer. */
    public EngineRanks needingRanks() {
        return needingRanks;
    }

    /**
     * Records how to write to a decoder, from its Attach frame.
     *
     * @throws IllegalArgumentException when two kinds of its context rows are indistinguishable
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

    public ContextKinds contextKinds() {
        return contextKinds;
    }
}
