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

    /** Layers are dealt to the PP ranks in order, as evenly as possible; layer l takes {@code l + 1} bytes a row. */
    static KvGeometry geometry(
            PageLayout layout, int kvHeadCount, int pageTokens, int layerCount, int tpSize, int ppSize) {
        Sharding sharding = new Sharding(tpSize, ppSize, 1);
        List<RankGeometry> ranks = new ArrayList<>();
        for (int ppRank = 0; ppRank < ppSize; ppRank++) {
            int fromLayer = layerCount * ppRank / ppSize;
            int toLayer = layerCount * (ppRank + 1) / ppSize;
            for (int tpRank = 0; tpRank < tpSize; tpRank++) {
                HeadRange heads = sharding.headsOf(tpRank, kvHeadCount);
                List<LayerGeometry> layers = IntStream.range(fromLayer, toLayer)
                        .mapToObj(layer -> layer(layer, (layer + 1) * heads.count() * pageTokens))
                        .toList();
                ranks.add(new RankGeometry(tpRank, ppRank, heads, PAGE_COUNT, layers));
            }
        }
        return new KvGeometry("tiny", "float32", 4, pageTokens, layout, kvHeadCount, sharding, ranks);
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
                layers.add(new LayerGeometry(layer.name(), offsetBytes, rowBytes, layer.pageBytes()));
                offsetBytes += layer.pageBytes();
            }
            ranks.add(new RankGeometry(rank.tpRank(), rank.ppRank(), rank.heads(), rank.pageCount(), layers));
        }
        return withRanks(geometry, ranks);
    }

    static LayerGeometry layer(int index, int pageBytes) {
        return new LayerGeometry("layers." + index, index * LAYER_STRIDE_BYTES, pageBytes, pageBytes);
    }

    static KvGeometry withRanks(KvGeometry geometry, List<RankGeometry> ranks) {
        return new KvGeometry(
                geometry.model(),
                geometry.dtype(),
                geometry.elementBytes(),
                geometry.pageTokens(),
                geometry.layout(),
                geometry.kvHeadCount(),
                geometry.sharding(),
                ranks);
    }

    static boolean divides(int tpSize, int kvHeadCount) {
        return kvHeadCount % tpSize == 0 || tpSize % kvHeadCount == 0;
    }
}
