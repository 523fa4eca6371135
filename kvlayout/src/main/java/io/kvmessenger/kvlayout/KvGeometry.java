package io.kvmessenger.kvlayout;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;

/**
 * One side's KV cache, as its engine registered it. Peers exchange it once, before the first page.
 *
 * @param model fingerprint of the model; sides with different ones never exchange pages
 * @param weightsDigest digest of the files that the weights were loaded from, "" if unknown; sides with different known
 *     digests never exchange pages
 * @param settings what else decides which KV the engine computes; where both sides know theirs, they take the place of
 *     {@code model} in the comparison
 * @param groups of the whole engine, including groups without a layer in {@code ranks}; both sides list the same ones
 *     in the same order
 * @param ranks those that one messenger serves: all of the engine's, or some
 */
public record KvGeometry(
        String model,
        String weightsDigest,
        ModelSettings settings,
        Sharding sharding,
        List<KvGroup> groups,
        List<RankGeometry> ranks) {
    /** More than models have; bounds the cost of malformed input. */
    public static final int GROUP_COUNT_MAX = 64;

    /** For a model whose weights are unknown. */
    public KvGeometry(String model, Sharding sharding, List<KvGroup> groups, List<RankGeometry> ranks) {
        this(model, "", sharding, groups, ranks);
    }

    /** For an engine whose settings are unknown. */
    public KvGeometry(
            String model, String weightsDigest, Sharding sharding, List<KvGroup> groups, List<RankGeometry> ranks) {
        this(model, weightsDigest, ModelSettings.UNKNOWN, sharding, groups, ranks);
    }

    public KvGeometry {
        groups = List.copyOf(groups);
        ranks = List.copyOf(ranks);
        if (model.isEmpty()) {
            throw new IllegalArgumentException("model is empty, expected a name");
        }
        if (groups.isEmpty() || groups.size() > GROUP_COUNT_MAX) {
            throw new IllegalArgumentException(
                    "the geometry has " + groups.size() + " KV groups, expected 1 to " + GROUP_COUNT_MAX);
        }
        if (ranks.isEmpty()) {
            throw new IllegalArgumentException("the geometry has no ranks, expected at least one");
        }
        for (KvGroup group : groups) {
            sharding.headsPerRank(group.kvHeadCount());
            if (group.isDivided() && group.pageShares() != sharding.replicaCount(group.kvHeadCount())) {
                throw new IllegalArgumentException("pageShares is " + group.pageShares() + ", expected 1 or the "
                        + sharding.replicaCount(group.kvHeadCount()) + " ranks that hold the same heads");
            }
        }
        Set<List<Integer>> places = new HashSet<>();
        for (RankGeometry rank : ranks) {
            requireInside(rank, sharding, groups);
            if (!places.add(List.of(rank.tpRank(), rank.ppRank()))) {
                throw new IllegalArgumentException(
                        "two ranks are tpRank " + rank.tpRank() + ", ppRank " + rank.ppRank());
            }
        }
        pagesByLayer(sharding, groups, ranks);
    }

    private static void requireInside(RankGeometry rank, Sharding sharding, List<KvGroup> groups) {
        if (rank.tpRank() >= sharding.tpSize()) {
            throw new IllegalArgumentException(
                    "tpRank is " + rank.tpRank() + ", expected 0 to " + (sharding.tpSize() - 1));
        }
        if (rank.ppRank() >= sharding.ppSize()) {
            throw new IllegalArgumentException(
                    "ppRank is " + rank.ppRank() + ", expected 0 to " + (sharding.ppSize() - 1));
        }
        for (LayerGeometry layer : rank.layers()) {
            if (layer.groupIndex() >= groups.size()) {
                throw new IllegalArgumentException("groupIndex of layer \"" + layer.name() + "\" is "
                        + layer.groupIndex() + ", expected 0 to " + (groups.size() - 1));
            }
            layer.endBytes(groups.get(layer.groupIndex()).pageCount());
        }
    }

    public KvGroup groupOf(LayerGeometry layer) {
        return groups.get(layer.groupIndex());
    }

    /** The heads of a group's layers that a rank holds. */
    public HeadRange headsOf(RankGeometry rank, int groupIndex) {
        return sharding.headsOf(rank.tpRank(), groups.get(groupIndex).kvHeadCount());
    }

    /** Which of the shares of a group's divided pages a rank holds. */
    public static int shareOf(RankGeometry rank, KvGroup group) {
        return rank.tpRank() % group.pageShares();
    }

    /** Whether the pages of any group are divided among ranks. */
    public boolean hasDividedPages() {
        return groups.stream().anyMatch(KvGroup::isDivided);
    }

    /** Length that a rank's memory needs to hold every page of every layer in it; 0 when it has no layers. */
    public long spanBytes(int rankIndex, int memoryIndex) {
        return ranks.get(rankIndex).layers().stream()
                .filter(layer -> layer.memoryIndex() == memoryIndex)
                .mapToLong(layer -> layer.endBytes(groupOf(layer).pageCount()))
                .max()
                .orElse(0);
    }

    /**
     * The properties of a layer's pages that all ranks holding it share.
     *
     * @param headBytes bytes that one head takes in a page
     */
    record LayerPages(int groupIndex, int headBytes) {}

    /** By layer name, over the layers of all ranks. */
    SortedMap<String, LayerPages> pagesByLayer() {
        return pagesByLayer(sharding, groups, ranks);
    }

    private static SortedMap<String, LayerPages> pagesByLayer(
            Sharding sharding, List<KvGroup> groups, List<RankGeometry> ranks) {
        SortedMap<String, LayerPages> pagesByName = new TreeMap<>();
        for (RankGeometry rank : ranks) {
            for (LayerGeometry layer : rank.layers()) {
                int headCount =
                        sharding.headsPerRank(groups.get(layer.groupIndex()).kvHeadCount());
                LayerPages pages = new LayerPages(layer.groupIndex(), layer.pageBytes() / headCount);
                if (pages.headBytes * headCount != layer.pageBytes()) {
                    throw new IllegalArgumentException("pageBytes of layer \"" + layer.name() + "\" is "
                            + layer.pageBytes() + ", expected a multiple of the rank's " + headCount + " heads");
                }
                LayerPages other = pagesByName.putIfAbsent(layer.name(), pages);
                if (other != null && other.groupIndex != pages.groupIndex) {
                    throw new IllegalArgumentException("layer \"" + layer.name() + "\" is in KV group "
                            + pages.groupIndex + " on one rank and in " + other.groupIndex
                            + " on another, expected the same on all");
                }
                if (other != null && other.headBytes != pages.headBytes) {
                    throw new IllegalArgumentException("a head of layer \"" + layer.name() + "\" takes "
                            + pages.headBytes + " bytes of a page on one rank and " + other.headBytes
                            + " on another, expected the same on all");
                }
            }
        }
        return pagesByName;
    }
}
