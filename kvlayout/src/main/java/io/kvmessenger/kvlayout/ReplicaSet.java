package io.kvmessenger.kvlayout;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Ranks that hold identical bytes of a layer: any of them may be its source, all of them need it as targets.
 *
 * @param rankIndices positions in {@link KvGeometry#ranks()}, ascending
 */
public record ReplicaSet(HeadRange heads, List<Integer> rankIndices) {
    public ReplicaSet {
        rankIndices = List.copyOf(rankIndices);
        if (rankIndices.isEmpty()) {
            throw new IllegalArgumentException("the replica set of heads " + heads + " has no rank");
        }
    }

    /** The replica sets of the ranks that hold a layer, by first rank. */
    static List<ReplicaSet> ofLayer(KvGeometry geometry, String layerName) {
        Map<HeadRange, List<Integer>> byHeads = new LinkedHashMap<>();
        for (int i = 0; i < geometry.ranks().size(); i++) {
            RankGeometry rank = geometry.ranks().get(i);
            if (rank.layerIndex(layerName) >= 0) {
                byHeads.computeIfAbsent(rank.heads(), heads -> new ArrayList<>())
                        .add(i);
            }
        }
        List<ReplicaSet> sets = new ArrayList<>();
        byHeads.forEach((heads, rankIndices) -> sets.add(new ReplicaSet(heads, rankIndices)));
        return sets;
    }
}
