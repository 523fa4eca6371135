package io.kvmessenger.kvlayout;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Optional;

/**
 * Plans which bytes of a source page go where in a target page: with equal sharding and equal pages, one whole page
 * from each rank to its counterpart; otherwise the heads and tokens that both pages hold. Each group is planned
 * independently.
 *
 * <p>Pure functions of both descriptions; safe from any thread. It does not select pages.
 */
public final class LayoutPlanner {
    private final KvGeometry source;
    private final KvGeometry target;

    private LayoutPlanner(KvGeometry source, KvGeometry target) {
        this.source = source;
        this.target = target;
    }

    /**
     * The plan without a selection of replicas by transfer.
     *
     * @throws PlanException when {@link Compatibility#check} finds a mismatch
     */
    public static TransferPlan plan(KvGeometry source, KvGeometry target) {
        requireNone(Compatibility.check(source, target));
        return plan(source, target, SourceDraw.TWINS);
    }

    /**
     * The plan for the source's ranks when other messengers may serve its replicas or its other heads and layers.
     *
     * @throws PlanException when {@link Compatibility#checkPages} finds a mismatch
     */
    public static TransferPlan plan(KvGeometry source, KvGeometry target, SourceDraw draw) {
        requireNone(Compatibility.checkPages(source, target));
        return new LayoutPlanner(source, target).plan(draw);
    }

    private static void requireNone(Optional<Mismatch> mismatch) {
        if (mismatch.isPresent()) {
            throw new PlanException(mismatch.get());
        }
    }

    private TransferPlan plan(SourceDraw draw) {
        List<Piece> pieces = new ArrayList<>();
        for (int s = 0; s < source.ranks().size(); s++) {
            for (int t = 0; t < target.ranks().size(); t++) {
                addLayers(
                        pieces,
                        s,
                        t,
                        groupsSent(source.ranks().get(s), target.ranks().get(t), draw));
            }
        }
        return new TransferPlan(source, target, pieces);
    }

    /** The groups in whose layers one rank sends heads to the other. */
    private BitSet groupsSent(RankGeometry from, RankGeometry to, SourceDraw draw) {
        BitSet sent = new BitSet();
        for (int group = 0; group < source.groups().size(); group++) {
            boolean overlap = source.headsOf(from, group).overlaps(target.headsOf(to, group));
            sent.set(group, overlap && draw.sends(source, target, group, from, to));
        }
        return sent;
    }

    private void addLayers(List<Piece> pieces, int sourceRankIndex, int targetRankIndex, BitSet groupsSent) {
        RankGeometry from = source.ranks().get(sourceRankIndex);
        RankGeometry to = target.ranks().get(targetRankIndex);
        for (int layerIndex = 0; layerIndex < from.layers().size(); layerIndex++) {
            LayerGeometry layer = from.layers().get(layerIndex);
            int targetLayerIndex = groupsSent.get(layer.groupIndex()) ? to.layerIndex(layer.name()) : -1;
            if (targetLayerIndex >= 0) {
                PageCut cut = PageCut.of(
                        side(source, from, layer.groupIndex()),
                        side(target, to, layer.groupIndex()),
                        layer.pageBytes());
                pieces.add(new Piece(
                        sourceRankIndex,
                        targetRankIndex,
                        layerIndex,
                        targetLayerIndex,
                        layer.groupIndex(),
                        cut.partTokens(),
                        cut.source(),
                        cut.target(),
                        cut.lengthBytes()));
            }
        }
    }

    private static PageCut.Side side(KvGeometry geometry, RankGeometry rank, int group) {
        return new PageCut.Side(geometry.groups().get(group), geometry.headsOf(rank, group));
    }
}
