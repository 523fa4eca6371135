package io.kvmessenger.messenger;

import io.kvmessenger.kvlayout.GroupKind;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;

/** Small KV caches for the tests: two layers, four tokens a page. */
public final class Geometries {
    static final int PAGE_TOKENS = 4;
    static final int PAGE_COUNT = 8;

    private static final KvGroup GROUP =
            new KvGroup(GroupKind.FULL_ATTENTION, "int8", 1, PAGE_TOKENS, PageLayout.HND, 2, PAGE_COUNT);

    private Geometries() {}

    public static KvGeometry of(String model) {
        int pageBytes = 2 * PAGE_TOKENS;
        List<LayerGeometry> layers = List.of(
                new LayerGeometry("layers.0", 0, pageBytes, pageBytes),
                new LayerGeometry("layers.1", (long) pageBytes * PAGE_COUNT, pageBytes, pageBytes));
        RankGeometry rank = new RankGeometry(0, 0, layers);
        return new KvGeometry(model, Sharding.ALONE, List.of(GROUP), List.of(rank));
    }

    /**
     * Latent KV of one messenger that serves all ranks of its engine.
     *
     * @param pageShares of the pages: 1, or as many as there are ranks
     */
    public static KvGeometry latent(int tpSize, int pageShares) {
        return latent(tpSize, pageShares, IntStream.range(0, tpSize).toArray());
    }

    /** The same of a messenger that serves some ranks. */
    public static KvGeometry latent(int tpSize, int pageShares, int... tpRanks) {
        KvGroup group = new KvGroup(
                GroupKind.FULL_ATTENTION, "int8", 1, PAGE_TOKENS, PageLayout.LATENT, 1, PAGE_COUNT, pageShares);
        List<LayerGeometry> layers = List.of(
                new LayerGeometry("layers.0", 0, PAGE_TOKENS, PAGE_TOKENS),
                new LayerGeometry("layers.1", (long) PAGE_TOKENS * PAGE_COUNT, PAGE_TOKENS, PAGE_TOKENS));
        List<RankGeometry> ranks = Arrays.stream(tpRanks)
                .mapToObj(tpRank -> new RankGeometry(tpRank, 0, layers))
                .toList();
        return new KvGeometry("m", new Sharding(tpSize, 1, 1), List.of(group), ranks);
    }

    /** Of one messenger of an engine that has two: each serves one of two heads. */
    public static KvGeometry oneOfTwo(String model, int tpRank, Sharding sharding) {
        List<LayerGeometry> layers = List.of(
                new LayerGeometry("layers.0", 0, PAGE_TOKENS, PAGE_TOKENS),
                new LayerGeometry("layers.1", (long) PAGE_TOKENS * PAGE_COUNT, PAGE_TOKENS, PAGE_TOKENS));
        RankGeometry rank = new RankGeometry(tpRank, 0, layers);
        return new KvGeometry(model, sharding, List.of(GROUP), List.of(rank));
    }
}
