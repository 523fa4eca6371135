package io.kvmessenger.benchmarks;

import io.kvmessenger.kvlayout.GroupKind;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import java.util.ArrayList;
import java.util.List;

/** The KV cache shapes of public models in bfloat16; sharding and layout are up to the caller. */
enum ModelShape {
    DEEPSEEK_R1("DeepSeek-R1", 61, 1, 576 * 2, 64),
    QWEN3_CODER_480B("Qwen3-Coder-480B", 62, 8, 2 * 128 * 2, 16),
    LLAMA_70B("Llama-70B", 80, 8, 2 * 128 * 2, 16);

    /** How the layers of a rank are arranged in memory. */
    enum MemoryOrder {
        /** One layer's pages, then the next layer's. */
        LAYERS_OUTERMOST,
        /** One page of all layers, then the next page. */
        PAGES_OUTERMOST
    }

    private static final int PAGE_COUNT = 20_000;

    private final String title;
    private final int layerCount;
    private final int kvHeadCount;
    /** Bytes of one token in one head. */
    private final int rowBytes;

    private final int pageTokens;

    ModelShape(String title, int layerCount, int kvHeadCount, int rowBytes, int pageTokens) {
        this.title = title;
        this.layerCount = layerCount;
        this.kvHeadCount = kvHeadCount;
        this.rowBytes = rowBytes;
        this.pageTokens = pageTokens;
    }

    String title() {
        return title;
    }

    int pageTokens() {
        return pageTokens;
    }

    KvGeometry geometry(PageLayout layout, int tpSize, MemoryOrder order) {
        Sharding sharding = new Sharding(tpSize, 1, 1);
        List<RankGeometry> ranks = new ArrayList<>();
        for (int tpRank = 0; tpRank < tpSize; tpRank++) {
            int pageBytes = sharding.headsPerRank(kvHeadCount) * pageTokens * rowBytes;
            ranks.add(new RankGeometry(tpRank, 0, layers(pageBytes, order)));
        }
        KvGroup group =
                new KvGroup(GroupKind.FULL_ATTENTION, "bfloat16", 2, pageTokens, layout, kvHeadCount, PAGE_COUNT);
        return new KvGeometry(title, sharding, List.of(group), ranks);
    }

    private List<LayerGeometry> layers(int pageBytes, MemoryOrder order) {
        List<LayerGeometry> layers = new ArrayList<>();
        for (int i = 0; i < layerCount; i++) {
            String name = "model.layers." + i + ".self_attn.attn";
            layers.add(
                    switch (order) {
                        case LAYERS_OUTERMOST ->
                            new LayerGeometry(name, (long) i * PAGE_COUNT * pageBytes, pageBytes, pageBytes);
                        case PAGES_OUTERMOST ->
                            new LayerGeometry(name, (long) i * pageBytes, (long) layerCount * pageBytes, pageBytes);
                    });
        }
        return layers;
    }
}
