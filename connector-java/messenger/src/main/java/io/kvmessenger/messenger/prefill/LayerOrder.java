package io.kvmessenger.messenger.prefill;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.RankGeometry;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The order in which the layers of this engine's ranks become readable. The first rank leads: its worker increments the
 * layer counter on behalf of all ranks of its pipeline stage. Layers of other stages come after and are never counted,
 * so they become readable only at the end of the step.
 *
 * <p>Pure; immutable.
 */
final class LayerOrder {
    private final KvGeometry geometry;
    private final Map<Integer, Integer> firstOrdinalByStage = new LinkedHashMap<>();
    private final int layerCount;

    LayerOrder(KvGeometry geometry) {
        this.geometry = geometry;
        Map<Integer, List<String>> namesByStage = new LinkedHashMap<>();
        int ordinal = 0;
        for (RankGeometry rank : geometry.ranks()) {
            List<String> names = rank.layers().stream().map(LayerGeometry::name).toList();
            List<String> others = namesByStage.putIfAbsent(rank.ppRank(), names);
            if (others == null) {
                firstOrdinalByStage.put(rank.ppRank(), ordinal);
                ordinal += names.size();
            } else if (!others.equals(names)) {
                throw new IllegalArgumentException(
                        "tpRank " + rank.tpRank() + ", ppRank " + rank.ppRank() + " lists layers " + names
                                + ", expected those of the stage's other ranks in the same order: " + others);
            }
        }
        layerCount = ordinal;
    }

    /** Number of layers of all stages. */
    int layerCount() {
        return layerCount;
    }

    /** Position of a rank's layer in firing order, from 0: it is readable when more layers than this have fired. */
    int ordinalOf(int rankIndex, int layerIndex) {
        return firstOrdinalByStage.get(geometry.ranks().get(rankIndex).ppRank()) + layerIndex;
    }
}
