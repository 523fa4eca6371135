package io.kvmessenger.kvlayout;

import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * One rank's part of a KV cache.
 *
 * @param layers in the order in which they are computed, as far as known
 */
public record RankGeometry(int tpRank, int ppRank, HeadRange heads, int pageCount, List<LayerGeometry> layers) {
    public RankGeometry {
        layers = List.copyOf(layers);
        if (tpRank < 0 || ppRank < 0) {
            throw new IllegalArgumentException(
                    "tpRank is " + tpRank + " and ppRank is " + ppRank + ", expected both to be at least 0");
        }
        if (pageCount < 1) {
            throw new IllegalArgumentException("pageCount is " + pageCount + ", expected at least 1");
        }
        if (layers.isEmpty()) {
            throw new IllegalArgumentException("the rank has no layers, expected at least one");
        }
        Set<String> names = new HashSet<>();
        for (LayerGeometry layer : layers) {
            if (!names.add(layer.name())) {
                throw new IllegalArgumentException("two layers are named \"" + layer.name() + "\"");
            }
            layer.endBytes(pageCount);
        }
    }

    /** Position of the layer in {@link #layers}, or -1. */
    public int layerIndex(String layerName) {
        for (int i = 0; i < layers.size(); i++) {
            if (layers.get(i).name().equals(layerName)) {
                return i;
            }
        }
        return -1;
    }

    /** Memories that layers lie in: indices 0 to this minus one. */
    public int memoryCount() {
        return 1 + layers.stream().mapToInt(LayerGeometry::memoryIndex).max().orElseThrow();
    }

    /** The length a memory must have to hold every page of every layer in it; 0 when no layer is. */
    public long spanBytes(int memoryIndex) {
        return layers.stream()
                .filter(layer -> layer.memoryIndex() == memoryIndex)
                .mapToLong(layer -> layer.endBytes(pageCount))
                .max()
                .orElse(0);
    }
}
