package io.kvmessenger.kvlayout;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.List;
import java.util.stream.IntStream;
import org.assertj.core.api.ThrowableAssert.ThrowingCallable;
import org.junit.jupiter.api.Test;

class KvGeometryTest {
    private static final LayerGeometry LAYER = new LayerGeometry("a", 0, 64, 64);
    private static final RankGeometry RANK = new RankGeometry(0, 0, List.of(LAYER));

    private static KvGroup group(PageLayout layout, int kvHeadCount, int pageCount) {
        return new KvGroup(GroupKind.FULL_ATTENTION, "float32", 4, 2, layout, kvHeadCount, pageCount);
    }

    private static KvGeometry geometry(PageLayout layout, int kvHeadCount, Sharding sharding, RankGeometry... ranks) {
        return new KvGeometry("m", sharding, List.of(group(layout, kvHeadCount, 4)), List.of(ranks));
    }

    private static long spanBytes(LayerGeometry layer, int pageCount) {
        return new KvGeometry(
                        "m",
                        Sharding.ALONE,
                        List.of(group(PageLayout.HND, 4, pageCount)),
                        List.of(new RankGeometry(0, 0, List.of(layer))))
                .spanBytes(0, 0);
    }

    private static void refused(ThrowingCallable callable, String sentence) {
        assertThatThrownBy(callable)
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessage(sentence);
    }

    /** Strides that vLLM gives to 3 layers of 5 pages: 4 heads, 16 tokens, 16 elements of 2 bytes in a row. */
    @Test
    void shouldPlacePagesWhereTheEngineDoes() {
        LayerGeometry layersOutermost = new LayerGeometry("layers.2", 2 * 10_240, 2048, 2048);
        assertThat(layersOutermost.pageOffsetBytes(4)).isEqualTo(28_672);
        assertThat(spanBytes(layersOutermost, 5)).isEqualTo(3 * 10_240);
        LayerGeometry pagesOutermost = new LayerGeometry("layers.2", 2 * 2048, 6144, 2048);
        assertThat(pagesOutermost.pageOffsetBytes(4)).isEqualTo(28_672);
        assertThat(spanBytes(pagesOutermost, 5)).isEqualTo(5 * 6144);
    }

    /** The same shape split over two ranks: a head takes 512 bytes of a page, so a run starts at a multiple of it. */
    @Test
    void shouldCutHeadRunsAtTheEnginesHeadStride() {
        KvGeometry alone = engineGeometry(1);
        KvGeometry split = engineGeometry(2);
        assertThat(LayoutPlanner.plan(alone, split).piecesOfLayer(0))
                .containsExactlyInAnyOrder(
                        new Piece(0, 0, 0, 0, 0, 16, PageParts.whole(0), PageParts.whole(0), 1024),
                        new Piece(0, 1, 0, 0, 0, 16, PageParts.whole(1024), PageParts.whole(0), 1024));
    }

    private static KvGeometry engineGeometry(int tpSize) {
        Sharding sharding = new Sharding(tpSize, 1, 1);
        int pageBytes = 2048 / tpSize;
        List<RankGeometry> ranks = IntStream.range(0, tpSize)
                .mapToObj(rank -> new RankGeometry(rank, 0, List.of(new LayerGeometry("a", 0, pageBytes, pageBytes))))
                .toList();
        KvGroup group = new KvGroup(GroupKind.FULL_ATTENTION, "float16", 2, 16, PageLayout.HND, 4, 5);
        return new KvGeometry("m", sharding, List.of(group), ranks);
    }

    @Test
    void shouldStayExactWherePagesLieBeyondTwoGibibytes() {
        LayerGeometry layer = new LayerGeometry("a", 1L << 40, 1 << 20, 1 << 20);
        assertThat(layer.pageOffsetBytes(Integer.MAX_VALUE))
                .isEqualTo((1L << 40) + (long) Integer.MAX_VALUE * (1 << 20));
    }

    @Test
    void shouldNameWhatIsWrongWithALayer() {
        refused(() -> new LayerGeometry("", 0, 1, 1), "a layer has no name");
        refused(() -> new LayerGeometry("a", -1, 1, 1), "offsetBytes of layer \"a\" is -1, expected at least 0");
        refused(() -> new LayerGeometry("a", 0, 1, 0), "pageBytes of layer \"a\" is 0, expected at least 1");
        refused(
                () -> new LayerGeometry("a", 0, 63, 64),
                "pageStrideBytes of layer \"a\" is 63, expected at least its pageBytes, 64");
    }

    @Test
    void shouldNameWhatIsWrongWithARank() {
        refused(
                () -> new RankGeometry(-1, 0, List.of(LAYER)),
                "tpRank is -1 and ppRank is 0, expected both to be at least 0");
        refused(() -> new RankGeometry(0, 0, List.of()), "the rank has no layers, expected at least one");
        refused(() -> new RankGeometry(0, 0, List.of(LAYER, LAYER)), "two layers are named \"a\"");
        LayerGeometry huge = new LayerGeometry("a", 0, Long.MAX_VALUE / 2, 1);
        refused(
                () -> geometry(PageLayout.HND, 1, Sharding.ALONE, new RankGeometry(0, 0, List.of(huge))),
                "layer \"a\" ends beyond 2^63 bytes with 4 pages");
        refused(() -> new HeadRange(2, 2), "head range is [2, 2), expected a non-empty range of heads from 0");
    }

    @Test
    void shouldNameWhatIsWrongWithTheWhole() {
        refused(
                () -> new KvGeometry("", Sharding.ALONE, List.of(group(PageLayout.HND, 2, 4)), List.of(RANK)),
                "model is empty, expected a name");
        refused(
                () -> new KvGroup(GroupKind.FULL_ATTENTION, "d", 1, 0, PageLayout.HND, 2, 4),
                "pageTokens is 0, expected at least 1");
        refused(
                () -> new KvGroup(GroupKind.FULL_ATTENTION, "", 1, 1, PageLayout.HND, 2, 4),
                "dtype is empty, expected a name");
        refused(() -> group(PageLayout.HND, 2, 0), "pageCount is 0, expected at least 1");
        refused(
                () -> new KvGeometry("m", Sharding.ALONE, List.of(), List.of(RANK)),
                "the geometry has 0 KV groups, expected 1 to 64");
        refused(
                () -> geometry(
                        PageLayout.HND,
                        2,
                        Sharding.ALONE,
                        new RankGeometry(0, 0, List.of(new LayerGeometry("a", 1, 0, 0, 64, 64)))),
                "groupIndex of layer \"a\" is 1, expected 0 to 0");
        refused(
                () -> geometry(PageLayout.HND, 2, new Sharding(3, 1, 1), RANK),
                "tpSize is 3 with 2 KV heads, expected one to be a multiple of the other:"
                        + " choose another tensor parallel size");
        refused(() -> geometry(PageLayout.HND, 2, Sharding.ALONE), "the geometry has no ranks, expected at least one");
        refused(
                () -> geometry(PageLayout.LATENT, 2, Sharding.ALONE, RANK),
                "kvHeadCount is 2 with layout LATENT, expected 1: latent KV has no heads");
        refused(() -> geometry(PageLayout.HND, 2, Sharding.ALONE, RANK, RANK), "two ranks are tpRank 0, ppRank 0");
        refused(
                () -> geometry(PageLayout.HND, 2, Sharding.ALONE, new RankGeometry(1, 0, List.of(LAYER))),
                "tpRank is 1, expected 0 to 0");
        refused(
                () -> geometry(PageLayout.HND, 2, Sharding.ALONE, new RankGeometry(0, 1, List.of(LAYER))),
                "ppRank is 1, expected 0 to 0");
        refused(
                () -> geometry(
                        PageLayout.HND,
                        2,
                        Sharding.ALONE,
                        new RankGeometry(0, 0, List.of(new LayerGeometry("a", 0, 65, 65)))),
                "pageBytes of layer \"a\" is 65, expected a multiple of the rank's 2 heads");
        refused(
                () -> new Sharding(3, 1, 1).headsOf(0, 4),
                "tpSize is 3 with 4 KV heads, expected one to be a multiple of the other:"
                        + " choose another tensor parallel size");
        refused(() -> new Sharding(1, 0, 1), "ppSize is 0, expected at least 1 and at most 4096");
        refused(() -> new Sharding(1 << 30, 1, 1), "tpSize is 1073741824, expected at least 1 and at most 4096");
        refused(() -> new Sharding(128, 64, 1), "tpSize is 128 and ppSize is 64, expected at most 4096 ranks together");
    }

    @Test
    void shouldParseTheNamesOfLayoutsAndNoOthers() {
        for (PageLayout layout : List.of(PageLayout.HND, PageLayout.NHD, PageLayout.LATENT)) {
            assertThat(PageLayout.parse(layout.name())).isEqualTo(layout);
        }
        refused(
                () -> PageLayout.parse("hnd"),
                "layout is \"hnd\", expected HND, NHD or LATENT:"
                        + " choose a KV cache layout of the engine that is one of them");
    }
}
