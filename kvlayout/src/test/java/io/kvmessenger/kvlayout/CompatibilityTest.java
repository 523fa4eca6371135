package io.kvmessenger.kvlayout;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

class CompatibilityTest {
    private static final KvGeometry BASE = geometry("m", "bfloat16", 2, 16, PageLayout.HND, 2, "a", 2048);

    private static KvGeometry geometry(
            String model,
            String dtype,
            int elementBytes,
            int pageTokens,
            PageLayout layout,
            int kvHeadCount,
            String layerName,
            int pageBytes) {
        LayerGeometry layer = new LayerGeometry(layerName, 0, pageBytes, pageBytes);
        KvGroup group = new KvGroup(GroupKind.FULL_ATTENTION, dtype, elementBytes, pageTokens, layout, kvHeadCount, 5);
        return new KvGeometry(model, Sharding.ALONE, List.of(group), List.of(new RankGeometry(0, 0, List.of(layer))));
    }

    static Stream<Arguments> mismatches() {
        return Stream.of(
                Arguments.of("model", geometry("n", "bfloat16", 2, 16, PageLayout.HND, 2, "a", 2048), "m", "n"),
                Arguments.of(
                        "dtype", geometry("m", "float16", 2, 16, PageLayout.HND, 2, "a", 2048), "bfloat16", "float16"),
                Arguments.of("elementBytes", geometry("m", "bfloat16", 4, 16, PageLayout.HND, 2, "a", 2048), "2", "4"),
                Arguments.of("pageTokens", geometry("m", "bfloat16", 2, 24, PageLayout.HND, 2, "a", 3072), "16", "24"),
                Arguments.of(
                        "page bytes for each KV head of layer \"a\"",
                        geometry("m", "bfloat16", 2, 16, PageLayout.HND, 2, "a", 1024),
                        "1024",
                        "512"),
                Arguments.of("layout", geometry("m", "bfloat16", 2, 16, PageLayout.NHD, 2, "a", 2048), "HND", "NHD"),
                Arguments.of("kvHeadCount", geometry("m", "bfloat16", 2, 16, PageLayout.HND, 4, "a", 2048), "2", "4"),
                Arguments.of(
                        "layer names", geometry("m", "bfloat16", 2, 16, PageLayout.HND, 2, "b", 2048), "[a]", "[b]"),
                Arguments.of(
                        "page bytes for each KV head of layer \"a\"",
                        geometry("m", "bfloat16", 2, 16, PageLayout.HND, 2, "a", 4096),
                        "1024",
                        "2048"));
    }

    @ParameterizedTest
    @MethodSource("mismatches")
    void shouldNameTheFieldAndBothValues(String field, KvGeometry target, String sourceValue, String targetValue) {
        assertThat(Compatibility.check(BASE, target)).contains(new Mismatch(field, sourceValue, targetValue));
    }

    @Test
    void shouldSayInOneSentenceWhatToDo() {
        KvGeometry other = geometry("m", "float32", 4, 16, PageLayout.HND, 2, "a", 4096);
        assertThat(Compatibility.check(BASE, other).orElseThrow().sentence())
                .isEqualTo("the prefiller's dtype is bfloat16, the decoder's is float32: start both with the same");
    }

    @Test
    void shouldRefuseOtherWeightsOfOneModelWhereBothSidesKnowTheirs() {
        assertThat(Compatibility.check(weighing("1f"), weighing("1f"))).isEmpty();
        assertThat(Compatibility.check(weighing("1f"), weighing(""))).isEmpty();
        assertThat(Compatibility.check(weighing(""), weighing("2e"))).isEmpty();
        assertThat(Compatibility.check(weighing("1f"), weighing("2e"))
                        .orElseThrow()
                        .sentence())
                .isEqualTo(
                        "the prefiller's weights digest is 1f, the decoder's is 2e: start both with the same model's files, or"
                                + " set model_id alike on both where the weights are the same");
    }

    private static KvGeometry weighing(String weights) {
        return new KvGeometry(BASE.model(), weights, BASE.sharding(), BASE.groups(), BASE.ranks());
    }

    @Test
    void shouldAcceptPagesOfAMultipleOfTokensAndNameTheRemedyForOthers() {
        KvGeometry rows = geometry("m", "bfloat16", 2, 16, PageLayout.NHD, 2, "a", 2048);
        assertThat(Compatibility.check(rows, geometry("m", "bfloat16", 2, 32, PageLayout.NHD, 2, "a", 4096)))
                .isEmpty();
        assertThat(Compatibility.check(rows, geometry("m", "bfloat16", 2, 8, PageLayout.NHD, 2, "a", 1024)))
                .isEmpty();
        KvGeometry other = geometry("m", "bfloat16", 2, 24, PageLayout.HND, 2, "a", 3072);
        assertThat(Compatibility.check(BASE, other).orElseThrow().sentence())
                .isEqualTo("the prefiller's pageTokens is 16, the decoder's is 24:"
                        + " start both with the same (with NHD or LATENT pages, a multiple will do)");
    }

    @Test
    void shouldNotCutAHeadWhoseInsideIsOpaque() {
        assertThat(Compatibility.check(BASE, geometry("m", "bfloat16", 2, 32, PageLayout.HND, 2, "a", 4096)))
                .contains(new Mismatch("pageTokens", "16", "32"));
    }

    @Test
    void shouldNameTheShardingWhenTheMessengersAskedTogetherLackHeadsOrLayers() {
        KvGeometry source = Shapes.geometry(PageLayout.HND, 4, 2, 2, 2, 2);
        KvGeometry target = Shapes.geometry(PageLayout.HND, 4, 2, 2, 1, 1);
        List<KvGeometry> messengers = source.ranks().stream()
                .map(rank -> Shapes.withRanks(source, List.of(rank)))
                .toList();
        assertThat(Compatibility.checkCoverage(messengers, target)).isEmpty();
        for (int without = 0; without < messengers.size(); without++) {
            List<KvGeometry> fewer = new ArrayList<>(messengers);
            fewer.remove(without);
            assertThat(Compatibility.checkCoverage(fewer, target).orElseThrow().field())
                    .isEqualTo("sharding");
        }
    }

    @Test
    void shouldCountLayersBeforeComparingTheirNames() {
        KvGeometry two = Shapes.geometry(PageLayout.HND, 2, 2, 2, 1, 1);
        KvGeometry three = Shapes.geometry(PageLayout.HND, 2, 2, 3, 1, 1);
        assertThat(Compatibility.check(two, three)).contains(new Mismatch("layer count", "2", "3"));
    }

    @Test
    void shouldAcceptEqualGeometriesAndOtherPageCountsOffsetsAndStrides() {
        LayerGeometry moved = new LayerGeometry("a", 4096, 8192, 2048);
        KvGroup larger = new KvGroup(GroupKind.FULL_ATTENTION, "bfloat16", 2, 16, PageLayout.HND, 2, 99);
        KvGeometry other =
                new KvGeometry("m", Sharding.ALONE, List.of(larger), List.of(new RankGeometry(0, 0, List.of(moved))));
        assertThat(Compatibility.check(BASE, BASE)).isEmpty();
        assertThat(Compatibility.check(BASE, other)).isEmpty();
    }

    @Test
    void shouldAcceptAnotherSharding() {
        KvGeometry alone = Shapes.geometry(PageLayout.HND, 4, 2, 3, 1, 1);
        KvGeometry sharded = Shapes.geometry(PageLayout.HND, 4, 2, 3, 8, 3);
        assertThat(Compatibility.check(alone, sharded)).isEmpty();
    }

    @Test
    void shouldNameTheGroupWhereThereAreSeveral() {
        KvGroup rows = Shapes.group(PageLayout.NHD, 4, 2);
        KvGeometry base = Shapes.geometry(List.of(rows, Shapes.group(PageLayout.NHD, 2, 4)), 3, 1, 1);
        assertThat(Compatibility.check(base, base)).isEmpty();
        assertThat(Compatibility.check(base, Shapes.geometry(List.of(rows), 3, 1, 1)))
                .contains(new Mismatch("count of KV groups", "2", "1"));
        assertThat(Compatibility.check(
                        base, Shapes.geometry(List.of(rows, Shapes.group(PageLayout.NHD, 1, 4)), 3, 1, 1)))
                .contains(new Mismatch("kvHeadCount of KV group 1", "2", "1"));
        Mismatch tokens = Compatibility.check(
                        base, Shapes.geometry(List.of(rows, Shapes.group(PageLayout.NHD, 2, 3)), 3, 1, 1))
                .orElseThrow();
        assertThat(tokens.sentence())
                .isEqualTo("the prefiller's pageTokens of KV group 1 is 4, the decoder's is 3:"
                        + " start both with the same (with NHD or LATENT pages, a multiple will do)");
    }

    @Test
    void shouldRefuseALayerThatTheSidesHaveInDifferentGroups() {
        List<KvGroup> alike = List.of(Shapes.group(PageLayout.HND, 2, 2), Shapes.group(PageLayout.HND, 2, 2));
        KvGeometry source = Shapes.geometry(alike, 2, 1, 1);
        List<LayerGeometry> swapped = source.ranks().getFirst().layers().stream()
                .map(layer -> new LayerGeometry(
                        layer.name(),
                        1 - layer.groupIndex(),
                        0,
                        layer.offsetBytes(),
                        layer.pageStrideBytes(),
                        layer.pageBytes()))
                .toList();
        KvGeometry target = Shapes.withRanks(source, List.of(new RankGeometry(0, 0, swapped)));
        assertThat(Compatibility.checkPages(source, target))
                .contains(new Mismatch("KV group of layer \"layers.0\"", "0", "1"));
    }

    @Test
    void shouldRefuseNhdRowsThatAreNoWholeBytesWhenHeadsAreSplit() {
        LayerGeometry layer = new LayerGeometry("a", 0, 6, 6);
        KvGroup group = new KvGroup(GroupKind.FULL_ATTENTION, "d", 1, 2, PageLayout.NHD, 2, 1);
        KvGeometry alone =
                new KvGeometry("m", Sharding.ALONE, List.of(group), List.of(new RankGeometry(0, 0, List.of(layer))));
        LayerGeometry half = new LayerGeometry("a", 0, 3, 3);
        KvGeometry split = new KvGeometry(
                "m",
                new Sharding(2, 1, 1),
                List.of(group),
                List.of(new RankGeometry(0, 0, List.of(half)), new RankGeometry(1, 0, List.of(half))));
        assertThat(Compatibility.check(alone, split).orElseThrow().field()).isEqualTo("sharding");
        assertThat(Compatibility.check(split, split)).isEmpty();
    }
}
