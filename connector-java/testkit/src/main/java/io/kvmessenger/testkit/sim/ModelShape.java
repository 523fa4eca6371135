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

/**
 * What both engines of a run agree on. How each shards it, where its layers lie and in which order they are listed is its
 * own business.
 *
 * @param bytesPerToken bytes of one head of one token, by layer
 */
record ModelShape(PageLayout layout, int heads, int pageTokens, List<Integer> bytesPerToken) {
    private static final int PAGE_COUNT_MIN = 24;
    private static final int MESSENGER_COUNT_MAX = 4;

    /** The geometries of one engine's messengers. */
    List<KvGeometry> drawEngine(RandomGenerator random, RandomGenerator shards, boolean sharded) {
        int pageCount = PAGE_COUNT_MIN + random.nextInt(40);
        boolean interleaved = random.nextBoolean();
        boolean shuffled = random.nextInt(4) == 0;
        long order = shuffled ? random.nextLong() : 0;
        Sharding sharding = sharded
                ? new Sharding(1 << shards.nextInt(3), bytesPerToken.size() > 1 ? 1 + shards.nextInt(2) : 1, 1)
                : Sharding.ALONE;
        List<RankGeometry> ranks = new ArrayList<>();
        for (int ppRank = 0; ppRank < sharding.ppSize(); ppRank++) {
            for (int tpRank = 0; tpRank < sharding.tpSize(); tpRank++) {
                List<LayerGeometry> layers = layersOf(sharding, ppRank, pageCount, interleaved);
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
        return messengersOf(sharding, ranks, pageCount, messengers);
    }

    private List<KvGeometry> messengersOf(
            Sharding sharding, List<RankGeometry> ranks, int pageCount, int messengerCount) {
        KvGroup group = new KvGroup(GroupKind.FULL_ATTENTION, "float8", 1, pageTokens, layout, heads, pageCount);
        List<KvGeometry> messengers = new ArrayList<>();
        int ranksEach = ranks.size() / messengerCount;
        for (int from = 0; from < ranks.size(); from += ranksEach) {
            messengers.add(
                    new KvGeometry("simulated", sharding, List.of(group), ranks.subList(from, from + ranksEach)));
        }
        return messengers;
    }

    private List<LayerGeometry> layersOf(Sharding sharding, int ppRank, int pageCount, boolean interleaved) {
        int headsHeld = sharding.headsPerRank(heads);
        int first = bytesPerToken.size() * ppRank / sharding.ppSize();
        int end = bytesPerToken.size() * (ppRank + 1) / sharding.ppSize();
        int allPagesBytes = bytesPerToken.subList(first, end).stream()
                .mapToInt(b -> b * headsHeld * pageTokens)
                .sum();
        List<LayerGeometry> layers = new ArrayList<>();
        long offset = 0;
        for (int i = first; i < end; i++) {
            int pageBytes = bytesPerToken.get(i) * headsHeld * pageTokens;
            long stride = interleaved ? allPagesBytes : pageBytes;
            layers.add(new LayerGeometry("layers." + i, offset, stride, pageBytes));
            offset += interleaved ? pageBytes : (long) pageBytes * pageCount;
        }
        return layers;
    }
}
