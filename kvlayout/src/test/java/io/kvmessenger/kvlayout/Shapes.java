package io.kvmessenger.kvlayout;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/** Builds complete geometries of small shapes for the tests. */
final class Shapes {
    static final int PAGE_COUNT = 11;

    /** More than any page count times page bytes here. */
    private static final long LAYER_STRIDE_BYTES = 3000;

    private Shapes() {}

    static KvGroup group(PageLayout layout, int kvHeadCount, int pageTokens) {
        return group(GroupKind.FULL_ATTENTION, layout, kvHeadCount, pageTokens);
    }

    static KvGroup windowed(int windowTokens, PageLayout layout, int kvHeadCount, int pageTokens) {
        return group(new GroupKind.SlidingWindow(windowTokens), layout, kvHeadCount, pageTokens);
    }

    static KvGroup group(GroupKind kind, PageLayout layout, int kvHeadCount, int pageTokens) {
        return new KvGroup(kind, "float32", 4, pageTokens, layout, kvHeadCount, PAGE_COUNT);
    }

    /** A cache of one group. */
    static KvGeometry geometry(
            PageLayout layout, int kvHeadCount, int pageTokens, int layerCount, int tpSize, int ppSize) {
        return geometry(List.of(group(layout, kvHeadCount, pageTokens)), layerCount, tpSize, ppSize);
    }

    /**
     * Layers are dealt to the PP ranks in order, as evenly as possible, and to the groups in turn; layer l takes {@code l +
     * 1} bytes a row.
     */
    static KvGeometry geometry(List<KvGroup> groups, int layerCount, int tpSize, int ppSize) {
        Sharding sharding = new Sharding(tpSize, ppSize, 1);
        List<RankGeometry> ranks = new ArrayList<>();
        for (int ppRank = 0; ppRank < ppSize; ppRank++) {
            int fromLayer = layerCount * ppRank / ppSize;
            int toLayer = layerCount * (ppRank + 1) / ppSize;
            for (int tpRank = 0; tpRank < tpSize; tpRank++) {
                List<LayerGeometry> layers = IntStream.range(fromLayer, toLayer)
                        .mapToObj(layer -> layer(layer, groups, sharding))
                        .toList();
                ranks.add(new RankGeometry(tpRank, ppRank, layers));
            }
        }
        return new KvGeometry("tiny", sharding, groups, ranks);
    }

    private static LayerGeometry layer(int index, List<KvGroup> groups, Sharding sharding) {
        int groupIndex = index % groups.size();
        KvGroup group = groups.get(groupIndex);
        int pageBytes = (index + 1) * sharding.headsPerRank(group.kvHeadCount()) * group.pageTokens();
        return new LayerGeometry("layers." + index, groupIndex, 0, index * LAYER_STRIDE_BYTES, pageBytes, pageBytes);
    }

    /** The same shape with all layers of a page side by side, as engines with pages outermost lay them out. */
    static KvGeometry pagesOutermost(KvGeometry geometry) {
        List<RankGeometry> ranks = new ArrayList<>();
        for (RankGeometry rank : geometry.ranks()) {
            int rowBytes =
                    rank.layers().stream().mapToInt(LayerGeometry::pageBytes).sum();
            List<LayerGeometry> layers = new ArrayList<>();
            long offsetBytes = 0;
            for (LayerGeometry layer : rank.layers()) {
                layers.add(new LayerGeometry(
                        layer.name(), layer.groupIndex(), 0, offsetBytes, rowBytes, layer.pageBytes()));
                offsetBytes += layer.pageBytes();
            }
            ranks.add(new RankGeometry(rank.tpRank(), rank.ppRank(), layers));
        }
        return withRanks(geometry, ranks);
    }

    static KvGeometry withRanks(KvGeometry geometry, List<RankGeometry> ranks) {
        return new KvGeometry(geometry.model(), geometry.sharding(), geometry.groups(), ranks);
    }

    static boolean divides(int tpSize, int kvHeadCount) {
        return kvHeadCount % tpSize == 0 || tpSize % kvHeadCount == 0;
    }
}
