package io.kvmessenger.testkit.sim;

import io.kvmessenger.kvlayout.KvGeometry;
import java.util.ArrayList;
import java.util.List;

/**
 * What the ranks of a messenger compute, step by step: the layers of one pipeline stage after the other. Only the first
 * stage's layers are counted, when the first rank has completed them; its other ranks have completed a layer when the
 * first rank completes the next one, which depends on their results.
 */
final class ComputedLayers {
    /** One layer of one rank. */
    record RankLayer(int rankIndex, int layerIndex, PageContent content) {}

    private final List<List<RankLayer>> bySteps;
    private final int countedCount;

    private ComputedLayers(List<List<RankLayer>> bySteps, int countedCount) {
        this.bySteps = bySteps;
        this.countedCount = countedCount;
    }

    static ComputedLayers of(KvGeometry geometry) {
        List<List<RankLayer>> bySteps = new ArrayList<>();
        List<Integer> stages =
                geometry.ranks().stream().map(rank -> rank.ppRank()).distinct().toList();
        for (int stage : stages) {
            int first = bySteps.size();
            for (int rank = 0; rank < geometry.ranks().size(); rank++) {
                if (geometry.ranks().get(rank).ppRank() == stage) {
                    addRank(bySteps, first, geometry, rank);
                }
            }
        }
        return new ComputedLayers(bySteps, geometry.ranks().getFirst().layers().size());
    }

    private static void addRank(List<List<RankLayer>> bySteps, int first, KvGeometry geometry, int rank) {
        for (int layer = 0; layer < geometry.ranks().get(rank).layers().size(); layer++) {
            if (first + layer == bySteps.size()) {
                bySteps.add(new ArrayList<>());
            }
            bySteps.get(first + layer).add(new RankLayer(rank, layer, new PageContent(geometry, rank, layer)));
        }
    }

    int count() {
        return bySteps.size();
    }

    /** Number of layers whose completion increments the counter. */
    int countedCount() {
        return countedCount;
    }

    /** How many layers fewer than counted are guaranteed to be complete on all ranks. */
    int counterLag() {
        return bySteps.getFirst().size() > 1 ? 1 : 0;
    }

    /** Every layer of every rank. */
    List<RankLayer> all() {
        return bySteps.stream().flatMap(List::stream).toList();
    }

    /** The layers of all ranks at a step. */
    List<RankLayer> at(int step) {
        return bySteps.get(step);
    }

    /** Those that are complete when the counter is incremented; for a layer that is not counted, all. */
    List<RankLayer> firstAt(int step) {
        return step < countedCount ? at(step).subList(0, 1) : at(step);
    }

    /** Those that may be completed later. */
    List<RankLayer> laterAt(int step) {
        return step < countedCount ? at(step).subList(1, at(step).size()) : List.of();
    }
}
