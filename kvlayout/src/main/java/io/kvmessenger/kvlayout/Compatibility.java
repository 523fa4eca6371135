package io.kvmessenger.kvlayout;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.SortedMap;

/**
 * Says whether pages of one side mean the same on the other: when {@link #check} finds nothing, {@link
 * LayoutPlanner#plan} has a plan.
 *
 * <p>Pure functions; safe from any thread.
 */
public final class Compatibility {
    private Compatibility() {}

    /** The first mismatch, most telling field first; empty when pages can flow from source to target. */
    public static Optional<Mismatch> check(KvGeometry source, KvGeometry target) {
        return differing("model", source.model(), target.model())
                .or(() -> differing("dtype", source.dtype(), target.dtype()))
                .or(() -> differing("elementBytes", source.elementBytes(), target.elementBytes()))
                .or(() -> differing("pageTokens", source.pageTokens(), target.pageTokens()))
                .or(() -> differing(
                        "layout", source.layout().name(), target.layout().name()))
                .or(() -> differing("kvHeadCount", source.kvHeadCount(), target.kvHeadCount()))
                .or(() -> checkLayers(source.headPageBytesByLayer(), target.headPageBytesByLayer()))
                .or(() -> checkSharding(source, target));
    }

    private static Optional<Mismatch> differing(String field, Object sourceValue, Object targetValue) {
        return sourceValue.equals(targetValue)
                ? Optional.empty()
                : Optional.of(new Mismatch(field, sourceValue.toString(), targetValue.toString()));
    }

    private static Optional<Mismatch> checkLayers(
            SortedMap<String, Integer> source, SortedMap<String, Integer> target) {
        if (source.size() != target.size()) {
            return differing("layer count", source.size(), target.size());
        }
        for (Map.Entry<String, Integer> layer : target.entrySet()) {
            Integer sourceBytes = source.get(layer.getKey());
            if (sourceBytes == null) {
                return differing("layer names", List.copyOf(source.keySet()), List.copyOf(target.keySet()));
            }
            if (!sourceBytes.equals(layer.getValue())) {
                String field = "page bytes for each KV head of layer \"" + layer.getKey() + "\"";
                return differing(field, sourceBytes, layer.getValue());
            }
        }
        return Optional.empty();
    }

    private static Optional<Mismatch> checkSharding(KvGeometry source, KvGeometry target) {
        for (RankGeometry rank : target.ranks()) {
            for (LayerGeometry layer : rank.layers()) {
                List<ReplicaSet> sets = ReplicaSet.ofLayer(source, layer.name());
                int covered = sets.stream()
                        .map(ReplicaSet::heads)
                        .filter(rank.heads()::overlaps)
                        .mapToInt(heads -> heads.intersection(rank.heads()).count())
                        .sum();
                boolean sliced = sets.stream().anyMatch(set -> isSlicedByToken(source.layout(), set.heads(), rank));
                int headPageBytes = layer.pageBytes() / rank.heads().count();
                if (covered < rank.heads().count() || (sliced && headPageBytes % target.pageTokens() != 0)) {
                    return Optional.of(new Mismatch("sharding", describeRanks(source), describeRanks(target)));
                }
            }
        }
        return Optional.empty();
    }

    private static boolean isSlicedByToken(PageLayout layout, HeadRange sourceHeads, RankGeometry target) {
        return switch (layout) {
            case PageLayout.Nhd() -> sourceHeads.overlaps(target.heads()) && !sourceHeads.equals(target.heads());
            case PageLayout.Hnd(), PageLayout.Latent() -> false;
        };
    }

    private static String describeRanks(KvGeometry geometry) {
        Sharding sharding = geometry.sharding();
        return sharding + " (" + geometry.ranks().size() + " of " + sharding.tpSize() * sharding.ppSize() + " ranks)";
    }
}
