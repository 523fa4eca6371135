package io.kvmessenger.kvlayout;

import static java.util.stream.Collectors.joining;

import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.SortedMap;

/**
 * Says whether pages of one side mean the same on the other: when {@link #check} finds nothing, {@link
 * LayoutPlanner#plan} has a plan.
 *
 * <p>Pure functions; safe from any thread.
 */
public final class Compatibility {
    private Compatibility() {}

    /** The first mismatch, most telling field first; empty when the source alone can fill the target's pages. */
    public static Optional<Mismatch> check(KvGeometry source, KvGeometry target) {
        return checkFields(source, target)
                .or(() -> checkLayerNames(source, target))
                .or(() -> checkLayerBytes(source, target))
                .or(() -> checkRows(source, target))
                .or(() -> checkCoverage(List.of(source), target));
    }

    /** As {@link #check}, between sides of which each may serve only some of its engine's heads and layers. */
    public static Optional<Mismatch> checkPages(KvGeometry source, KvGeometry target) {
        return checkFields(source, target)
                .or(() -> checkLayerBytes(source, target))
                .or(() -> checkRows(source, target));
    }

    private static Optional<Mismatch> checkFields(KvGeometry source, KvGeometry target) {
        return differing("model", source.model(), target.model())
                .or(() -> differing("dtype", source.dtype(), target.dtype()))
                .or(() -> differing("elementBytes", source.elementBytes(), target.elementBytes()))
                .or(() -> differing(
                        "layout", source.layout().name(), target.layout().name()))
                .or(() -> checkPageTokens(source, target))
                .or(() -> differing("kvHeadCount", source.kvHeadCount(), target.kvHeadCount()));
    }

    private static Optional<Mismatch> differing(String field, Object sourceValue, Object targetValue) {
        return sourceValue.equals(targetValue)
                ? Optional.empty()
                : Optional.of(new Mismatch(field, sourceValue.toString(), targetValue.toString()));
    }

    /**
     * One page size must be a multiple of the other: then a page holds whole pages of the other side. Pages whose heads
     * are opaque cannot be cut by tokens at all: vLLM's CPU kernels, for one, keep all K of a head before all V.
     */
    private static Optional<Mismatch> checkPageTokens(KvGeometry source, KvGeometry target) {
        int sourceTokens = source.pageTokens();
        int targetTokens = target.pageTokens();
        boolean multiple = sourceTokens % targetTokens == 0 || targetTokens % sourceTokens == 0;
        if (multiple && !source.layout().equals(PageLayout.HND)) {
            return Optional.empty();
        }
        return differing(Mismatch.PAGE_TOKENS, sourceTokens, targetTokens);
    }

    private static Optional<Mismatch> checkLayerNames(KvGeometry source, KvGeometry target) {
        Set<String> sourceNames = source.headPageBytesByLayer().keySet();
        Set<String> targetNames = target.headPageBytesByLayer().keySet();
        return differing("layer count", sourceNames.size(), targetNames.size())
                .or(() -> differing("layer names", List.copyOf(sourceNames), List.copyOf(targetNames)));
    }

    private static Optional<Mismatch> checkLayerBytes(KvGeometry source, KvGeometry target) {
        SortedMap<String, Integer> sourceLayers = source.headPageBytesByLayer();
        for (Map.Entry<String, Integer> layer : target.headPageBytesByLayer().entrySet()) {
            Integer sourceBytes = sourceLayers.get(layer.getKey());
            int targetBytes = layer.getValue();
            if (sourceBytes != null && !equalRows(sourceBytes, source.pageTokens(), targetBytes, target.pageTokens())) {
                boolean equalPages = source.pageTokens() == target.pageTokens();
                return Optional.of(new Mismatch(
                        "page bytes for each KV head of layer \"" + layer.getKey() + "\"",
                        sourceBytes + (equalPages ? "" : " for " + source.pageTokens() + " tokens"),
                        targetBytes + (equalPages ? "" : " for " + target.pageTokens() + " tokens")));
            }
        }
        return Optional.empty();
    }

    /** Whether a head takes as many bytes for a token on both sides; a page may end with padding only if pages are equal. */
    private static boolean equalRows(int sourceBytes, int sourceTokens, int targetBytes, int targetTokens) {
        return sourceTokens == targetTokens
                ? sourceBytes == targetBytes
                : sourceBytes % sourceTokens == 0
                        && targetBytes % targetTokens == 0
                        && sourceBytes / sourceTokens == targetBytes / targetTokens;
    }

    /** NHD pages split by heads are cut token by token: a token of a head must be whole bytes. */
    private static Optional<Mismatch> checkRows(KvGeometry source, KvGeometry target) {
        int sourceHeads = source.sharding().headsPerRank(source.kvHeadCount());
        int targetHeads = target.sharding().headsPerRank(target.kvHeadCount());
        boolean cut = source.layout().equals(PageLayout.NHD) && sourceHeads != targetHeads;
        boolean wholeBytes = source.headPageBytesByLayer().values().stream()
                .allMatch(headPageBytes -> headPageBytes % source.pageTokens() == 0);
        return !cut || wholeBytes
                ? Optional.empty()
                : Optional.of(new Mismatch("sharding", describeRanks(source), describeRanks(target)));
    }

    /** Whether the ranks of all source messengers together hold every head of every layer that the target needs. */
    public static Optional<Mismatch> checkCoverage(List<KvGeometry> sources, KvGeometry target) {
        for (RankGeometry rank : target.ranks()) {
            for (LayerGeometry layer : rank.layers()) {
                BitSet missing = new BitSet();
                missing.set(rank.heads().from(), rank.heads().to());
                sources.stream()
                        .flatMap(source -> source.ranks().stream())
                        .filter(from -> from.layerIndex(layer.name()) >= 0)
                        .forEach(from ->
                                missing.clear(from.heads().from(), from.heads().to()));
                if (!missing.isEmpty()) {
                    String offered =
                            sources.stream().map(Compatibility::describeRanks).collect(joining(", "));
                    return Optional.of(new Mismatch("sharding", offered, describeRanks(target)));
                }
            }
        }
        return Optional.empty();
    }

    private static String describeRanks(KvGeometry geometry) {
        Sharding sharding = geometry.sharding();
        return sharding + " (" + geometry.ranks().size() + " of " + sharding.tpSize() * sharding.ppSize() + " ranks)";
    }
}
