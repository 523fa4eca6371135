package io.kvmessenger.kvlayout;

import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * One rank's part of a KV cache.
 *
 * @param layers of all groups, in the order of computation as far as it is known
 */
public record RankGeometry(int tpRank, int ppRank, List<LayerGeometry> layers) {
    public RankGeometry {
        layers = List.copyOf(layers);
        if (tpRank < 0 || ppRank < 0) {
            throw new IllegalArgumentException(
                    "tpRank is " + tpRank + " and ppRank is " + ppRank + ", expected both to be at least 0");
        }
        if (layers.isEmpty()) {
            throw new IllegalArgumentException("the rank has no layers, expected at least one");
        }
        Set<String> names = new HashSet<>();
        for (LayerGeometry layer : layers) {
            if (!names.add(layer.name())) {
                throw new IllegalArgumentException("two layers are named \"" + layer.name() + "\"");
            }
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

    public int layerCountOf(int groupIndex) {
        return (int) layers.stream()
                .filter(layer -> layer.groupIndex() == groupIndex)
                .count();
    }

    /** Number of memories that its layers lie in; their indices begin at 0. */
    public int memoryCount() {
        return 1 + layers.stream().mapToInt(LayerGeometry::memoryIndex).max().orElseThrow();
    }
}
