package io.kvmessenger.kvlayout;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Plans which bytes of a source page go where in a target page: with equal sharding one whole page from each rank to
 * its twin, otherwise the heads that both ranks hold.
 *
 * <p>Pure functions of both descriptions; safe from any thread. It does not choose pages, and does not merge
 * neighbouring ones.
 */
public final class LayoutPlanner {
    private LayoutPlanner() {}

    /** @throws PlanException when {@link Compatibility#check} finds a mismatch */
    public static TransferPlan plan(KvGeometry source, KvGeometry target) {
        Optional<Mismatch> mismatch = Compatibility.check(source, target);
        if (mismatch.isPresent()) {
            throw new PlanException(mismatch.get());
        }
        int layerCount = source.ranks().stream()
                .mapToInt(rank -> rank.layers().size())
                .max()
                .orElseThrow();
        List<Piece> pieces = new ArrayList<>();
        for (String layerName : source.headPageBytesByLayer().keySet()) {
            List<ReplicaSet> sourceSets = ReplicaSet.ofLayer(source, layerName);
            for (ReplicaSet targetSet : ReplicaSet.ofLayer(target, layerName)) {
                for (ReplicaSet sourceSet : sourceSets) {
                    if (sourceSet.heads().overlaps(targetSet.heads())) {
                        addPieces(pieces, source, target, layerName, sourceSet, targetSet);
                    }
                }
            }
        }
        return new TransferPlan(layerCount, pieces);
    }

    /** Every target replica needs the bytes; the source replicas take turns, so that all of them work. */
    private static void addPieces(
            List<Piece> pieces,
            KvGeometry source,
            KvGeometry target,
            String layerName,
            ReplicaSet sourceSet,
            ReplicaSet targetSet) {
        for (int i = 0; i < targetSet.rankIndices().size(); i++) {
            int targetRankIndex = targetSet.rankIndices().get(i);
            int sourceRankIndex =
                    sourceSet.rankIndices().get(i % sourceSet.rankIndices().size());
            RankGeometry sourceRank = source.ranks().get(sourceRankIndex);
            RankGeometry targetRank = target.ranks().get(targetRankIndex);
            int layerIndex = sourceRank.layerIndex(layerName);
            Piece wholePage = new Piece(
                    sourceRankIndex,
                    targetRankIndex,
                    layerIndex,
                    targetRank.layerIndex(layerName),
                    0,
                    0,
                    sourceRank.layers().get(layerIndex).pageBytes());
            if (sourceRank.heads().equals(targetRank.heads())) {
                pieces.add(wholePage);
            } else {
                addHeadRange(pieces, source, wholePage, sourceRank.heads(), targetRank.heads());
            }
        }
    }

    private static void addHeadRange(
            List<Piece> pieces, KvGeometry source, Piece wholePage, HeadRange sourceHeads, HeadRange targetHeads) {
        int headPageBytes = wholePage.lengthBytes() / sourceHeads.count();
        switch (source.layout()) {
            case PageLayout.Hnd() -> addRun(pieces, wholePage, 0, headPageBytes, sourceHeads, targetHeads);
            case PageLayout.Nhd() -> {
                int rowBytes = headPageBytes / source.pageTokens();
                for (int token = 0; token < source.pageTokens(); token++) {
                    addRun(pieces, wholePage, token, rowBytes, sourceHeads, targetHeads);
                }
            }
            case PageLayout.Latent() -> throw new AssertionError("latent ranks differ in heads: " + wholePage);
        }
    }

    /** One run of the common heads, in the {@code rowIndex}-th row of heads of both pages. */
    private static void addRun(
            List<Piece> pieces,
            Piece wholePage,
            int rowIndex,
            int headBytes,
            HeadRange sourceHeads,
            HeadRange targetHeads) {
        HeadRange common = sourceHeads.intersection(targetHeads);
        pieces.add(new Piece(
                wholePage.sourceRankIndex(),
                wholePage.targetRankIndex(),
                wholePage.layerIndex(),
                wholePage.targetLayerIndex(),
                (rowIndex * sourceHeads.count() + common.from() - sourceHeads.from()) * headBytes,
                (rowIndex * targetHeads.count() + common.from() - targetHeads.from()) * headBytes,
                common.count() * headBytes));
    }
}
