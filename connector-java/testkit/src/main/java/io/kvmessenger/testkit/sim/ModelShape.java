package io.kvmessenger.testkit.sim;

import io.kvmessenger.kvlayout.GroupKind;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.random.RandomGenerator;
import java.util.stream.IntStream;

/**
 * What both engines of a run have in common. Each chooses its own sharding, memory layout and order of layers.
 *
 * @param groups to which layers are assigned in rotation
 * @param bytesPerToken bytes of one head of one token, by layer
 */
record ModelShape(List<Group> groups, List<Integer> bytesPerToken) {
    /** The common properties of a group's layers. */
    record Group(PageLayout layout, int heads, int pageTokens) {}

    /** One in this many runs has several groups. */
    private static final int ONE_IN_GROUPED = 3;

    private static final int GROUP_COUNT_MAX = 3;
    private static final int PAGE_COUNT_MIN = 24;
    private static final int MESSENGER_COUNT_MAX = 4;

    /** One group, or two or three that differ in layout, heads and page size; each has a layer. */
    static List<Group> drawGroups(Group first, int layerCount, RandomGenerator random) {
        List<Group> groups = new ArrayList<>(List.of(first));
        int count = random.nextInt(ONE_IN_GROUPED) > 0 ? 1 : 2 + random.nextInt(GROUP_COUNT_MAX - 1);
        List<PageLayout> layouts = List.of(PageLayout.HND, PageLayout.NHD, PageLayout.LATENT);
        while (groups.size() < Math.min(count, layerCount)) {
            PageLayout layout = layouts.get(random.nextInt(layouts.size()));
            int heads = layout == PageLayout.LATENT ? 1 : 1 << random.nextInt(3);
            groups.add(new Group(layout, heads, 1 << random.nextInt(4)));
        }
        return groups;
    }

    private int groupIndex(int layer) {
        return layer % groups.size();
    }

    private KvGroup group(int index, int blockCount) {
        Group group = groups.get(index);
        int blockTokens = groups.stream().mapToInt(Group::pageTokens).max().orElseThrow();
        int pageCount = BlockPages.pageCount(index, blockCount, blockTokens / group.pageTokens());
        return new KvGroup(
                GroupKind.FULL_ATTENTION, "float8", 1, group.pageTokens(), group.layout(), group.heads(), pageCount);
    }

    /** The geometries of one engine's messengers. */
    List<KvGeometry> drawEngine(RandomGenerator random, RandomGenerator shards, boolean sharded) {
        int pageCount = PAGE_COUNT_MIN + random.nextInt(40);
        boolean interleaved = random.nextBoolean();
        boolean shuffled = random.nextInt(4) == 0;
        long order = shuffled ? random.nextLong() : 0;
        Sharding sharding = sharded
                ? new Sharding(1 << shards.nextInt(3), bytesPerToken.size() > 1 ? 1 + shards.nextInt(2) : 1, 1)
                : Sharding.ALONE;
        List<KvGroup> ofEngine = IntStream.range(0, groups.size())
                .mapToObj(index -> group(index, pageCount))
                .toList();
        List<RankGeometry> ranks = new ArrayList<>();
        for (int ppRank = 0; ppRank < sharding.ppSize(); ppRank++) {
            for (int tpRank = 0; tpRank < sharding.tpSize(); tpRank++) {
                List<LayerGeometry> layers = layersOf(sharding, ppRank, ofEngine, interleaved);
                if (shuffled) {
                    Collections.shuffle(layers, new Random(order));
                }
                ranks.add(new RankGeometry(tpRank, ppRank, layers));
            }
        }
        int messengers = 1;
        while (messengers < Math.min(ranks.size(), MESSENGER_COUNT_MAX) && shards.nextBoolean()) {
            messengers *= 2;
        }
        return messengersOf(sharding, ranks, ofEngine, messengers);
    }

    /**
     * The prefiller's engine with the pages of its latent groups divided among 2 or 4 ranks, which one messenger serves:
     * the ranks of an engine name the same pages. Unchanged if a group has heads and the engine one rank.
     */
    static List<KvGeometry> divided(List<KvGeometry> messengers, long seed) {
        KvGeometry first = messengers.getFirst();
        List<KvGroup> groups = first.groups();
        boolean latent = groups.stream().allMatch(group -> group.layout() == PageLayout.LATENT);
        int tpSize = first.sharding().tpSize() > 1 || !latent ? first.sharding().tpSize() : 2 << (int) (seed % 2);
        if (tpSize == 1) {
            return messengers;
        }
        Sharding sharding = new Sharding(tpSize, first.sharding().ppSize(), 1);
        List<RankGeometry> ranks = messengers.stream()
                .flatMap(messenger -> messenger.ranks().stream())
                .flatMap(rank -> IntStream.range(0, tpSize / first.sharding().tpSize())
                        .mapToObj(i -> new RankGeometry(rank.tpRank() + i, rank.ppRank(), rank.layers())))
                .toList();
        List<KvGroup> dividedGroups = groups.stream()
                .map(group -> group.layout() == PageLayout.LATENT ? divided(group, tpSize) : group)
                .toList();
        return List.of(new KvGeometry(first.model(), sharding, dividedGroups, ranks));
    }

    private static KvGroup divided(KvGroup group, int pageShares) {
        return new KvGroup(
                group.kind(),
                group.dtype(),
                group.elementBytes(),
                group.pageTokens(),
                group.layout(),
                group.kvHeadCount(),
                group.pageCount(),
                pageShares);
    }

    private static List<KvGeometry> messengersOf(
            Sharding sharding, List<RankGeometry> ranks, List<KvGroup> ofEngine, int messengerCount) {
        List<KvGeometry> messengers = new ArrayList<>();
        int ranksEach = ranks.size() / messengerCount;
        for (int from = 0; from < ranks.size(); from += ranksEach) {
            messengers.add(new KvGeometry("simulated", sharding, ofEngine, ranks.subList(from, from + ranksEach)));
        }
        return messengers;
    }

    private int pageBytes(Sharding sharding, int layer) {
        Group group = groups.get(groupIndex(layer));
        return bytesPerToken.get(layer) * sharding.headsPerRank(group.heads()) * group.pageTokens();
    }

    private List<LayerGeometry> layersOf(Sharding sharding, int ppRank, List<KvGroup> ofEngine, boolean interleaved) {
        int first = bytesPerToken.size() * ppRank / sharding.ppSize();
        int end = bytesPerToken.size() * (ppRank + 1) / sharding.ppSize();
        int allPagesBytes = IntStream.range(first, end)
                .map(layer -> pageBytes(sharding, layer))
                .sum();
        List<LayerGeometry> layers = new ArrayList<>();
        long offset = 0;
        for (int i = first; i < end; i++) {
            int pageBytes = pageBytes(sharding, i);
            long stride = interleaved ? allPagesBytes : pageBytes;
            layers.add(new LayerGeometry("layers." + i, groupIndex(i), 0, offset, stride, pageBytes));
            offset += interleaved
                    ? pageBytes
                    : (long) pageBytes * ofEngine.get(groupIndex(i)).pageCount();
        }
        return layers;
    }
}
