package io.kvmessenger.testkit.sim;

import io.kvmessenger.kvlayout.HeadRange;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.messenger.ProtocolLimits;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.SplittableRandom;
import java.util.random.RandomGenerator;

/** Everything about a run that is drawn before it starts: shapes, limits, faults. A value. */
record Scenario(
        long seed,
        int prefillerCount,
        int decoderCount,
        int requestCount,
        FabricKind fabric,
        int slotCount,
        boolean slotsReusedAtOnce,
        int queueLimit,
        String secret,
        KvGeometry prefillerGeometry,
        KvGeometry decoderGeometry,
        ProtocolLimits limits,
        Swarm swarm) {
    static final long MICRO = 1_000;
    static final long MILLI = 1_000_000;

    /** Faults and new requests end here; then everything heals. */
    static final long SAFETY_NS = 400 * MILLI;
    /** After that long without faults everything must have ended: a generous multiple of all limits. */
    static final long LIVENESS_NS = 4_000 * MILLI;

    private static final int PAGE_COUNT_MIN = 24;

    /** @param quiet whether all faults are off */
    static Scenario draw(long seed, boolean quiet) {
        SplittableRandom random = new SplittableRandom(seed * 0x9E3779B97F4A7C15L + 1);
        PageLayout layout = switch (random.nextInt(3)) {
            case 0 -> PageLayout.HND;
            case 1 -> PageLayout.NHD;
            default -> PageLayout.LATENT;
        };
        int heads = layout == PageLayout.LATENT ? 1 : 1 << random.nextInt(3);
        int pageTokens = 1 << random.nextInt(4);
        List<Integer> bytesPerToken = new ArrayList<>();
        int layerCount = 1 + random.nextInt(6);
        for (int i = 0; i < layerCount; i++) {
            bytesPerToken.add(1 + random.nextInt(3));
        }
        return new Scenario(
                seed,
                1 + random.nextInt(2),
                1 + random.nextInt(2),
                4 + random.nextInt(40),
                List.of(FabricKind.values()).get(random.nextInt(FabricKind.values().length)),
                random.nextInt(3) == 0 ? 2 + random.nextInt(4) : 64,
                random.nextBoolean(),
                1 + random.nextInt(8),
                random.nextBoolean() ? "secret" : "",
                geometry(random, layout, heads, pageTokens, bytesPerToken),
                geometry(random, layout, heads, pageTokens, bytesPerToken),
                new ProtocolLimits(60 * MILLI, 150 * MILLI, 25 * MILLI, 5 * MILLI, 30 * MILLI),
                quiet ? Swarm.quiet(random) : Swarm.draw(random));
    }

    /** Where the layers lie, and in which order they are listed, is each side's own business. */
    private static KvGeometry geometry(
            RandomGenerator random, PageLayout layout, int heads, int pageTokens, List<Integer> bytesPerToken) {
        int pageCount = PAGE_COUNT_MIN + random.nextInt(40);
        boolean interleaved = random.nextBoolean();
        int allPagesBytes =
                bytesPerToken.stream().mapToInt(b -> b * heads * pageTokens).sum();
        List<LayerGeometry> layers = new ArrayList<>();
        long offset = 0;
        for (int i = 0; i < bytesPerToken.size(); i++) {
            int pageBytes = bytesPerToken.get(i) * heads * pageTokens;
            long stride = interleaved ? allPagesBytes : pageBytes;
            layers.add(new LayerGeometry("layers." + i, offset, stride, pageBytes));
            offset += interleaved ? pageBytes : (long) pageBytes * pageCount;
        }
        if (random.nextInt(4) == 0) {
            Collections.shuffle(layers, new Random(random.nextLong()));
        }
        RankGeometry rank = new RankGeometry(0, 0, new HeadRange(0, heads), pageCount, layers);
        return new KvGeometry("simulated", "float8", 1, pageTokens, layout, heads, Sharding.ALONE, List.of(rank));
    }

    int layerCount() {
        return prefillerGeometry.ranks().getFirst().layers().size();
    }
}
