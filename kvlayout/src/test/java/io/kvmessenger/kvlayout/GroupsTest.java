package io.kvmessenger.kvlayout;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Geometries of several groups: each is planned, expected and drawn for itself, over pages of its own. */
class GroupsTest {
    private static final int LAYERS = 4;
    private static final int TOKENS_MAX = 9;

    /** A group of the source and of the target that go together. */
    private record Pair(KvGroup source, KvGroup target) {}

    /** Whole pages of heads, rows, rows of other page sizes, and latent rows. */
    private static List<Pair> pairs() {
        return List.of(
                new Pair(Shapes.group(PageLayout.HND, 4, 2), Shapes.group(PageLayout.HND, 4, 2)),
                new Pair(Shapes.group(PageLayout.HND, 1, 4), Shapes.group(PageLayout.HND, 1, 4)),
                new Pair(Shapes.group(PageLayout.NHD, 2, 4), Shapes.group(PageLayout.NHD, 2, 2)),
                new Pair(Shapes.group(PageLayout.LATENT, 1, 1), Shapes.group(PageLayout.LATENT, 1, 2)));
    }

    private static void check(List<Pair> pairs, int sourceTp, int targetTp, int pp) {
        KvGeometry source = Shapes.geometry(pairs.stream().map(Pair::source).toList(), LAYERS, sourceTp, pp);
        KvGeometry target = Shapes.geometry(pairs.stream().map(Pair::target).toList(), LAYERS, targetTp, 1);
        int step = target.groups().stream().mapToInt(KvGroup::pageTokens).max().orElseThrow();
        for (int tokens = 1; tokens <= TOKENS_MAX; tokens += 2) {
            for (int first = 0; first < tokens; first += step) {
                for (int rotation = 0; rotation < SourceDraw.variantCount(source, target); rotation++) {
                    CarriedOut.check(List.of(source), target, new SourceDraw(rotation), first, tokens);
                }
            }
        }
    }

    @Test
    void shouldTileTheTargetWithTwoAndThreeGroupsForAllSmallShapes() {
        int shapeCount = 0;
        for (Pair one : pairs()) {
            for (Pair two : pairs()) {
                for (int sourceTp = 1; sourceTp <= 4; sourceTp *= 2) {
                    for (int targetTp = 1; targetTp <= 4; targetTp *= 2) {
                        check(List.of(one, two), sourceTp, targetTp, 1 + shapeCount % 2);
                        check(List.of(one, two, pairs().getFirst()), sourceTp, targetTp, 1);
                        shapeCount += 2;
                    }
                }
            }
        }
        assertThat(shapeCount).isEqualTo(288);
    }

    /** Each window and chunk from less than a page to more than the prompt, beside a group that needs all tokens. */
    @Test
    void shouldTileOnlyWhatTheLastTokenAttendsTo() {
        List<GroupKind> kinds = new ArrayList<>();
        for (int tokens = 1; tokens <= TOKENS_MAX + 1; tokens++) {
            kinds.add(new GroupKind.SlidingWindow(tokens));
            kinds.add(new GroupKind.ChunkedLocal(tokens));
        }
        for (GroupKind kind : kinds) {
            for (PageLayout layout : List.of(PageLayout.HND, PageLayout.NHD)) {
                Pair full = new Pair(Shapes.group(layout, 2, 2), Shapes.group(layout, 2, 2));
                KvGroup group = Shapes.group(kind, layout, 4, 2);
                for (int tp = 1; tp <= 4; tp *= 2) {
                    check(List.of(full, new Pair(group, group)), 1, tp, 1);
                    check(List.of(new Pair(group, group), full), tp, 2, 1);
                    check(List.of(new Pair(group, group)), tp, 4, 1);
                }
            }
        }
    }

    @Test
    void shouldSendNoPageThatLiesBeforeTheWindow() {
        KvGroup group = Shapes.windowed(4, PageLayout.HND, 1, 2);
        assertThat(group.pagesFor(0, 3)).isEqualTo(2);
        assertThat(group.pagesFor(0, 8)).isEqualTo(2);
        assertThat(group.pagesFor(0, 9)).isEqualTo(3);
        assertThat(group.pagesFor(8, 9)).isEqualTo(1);
        assertThat(group.firstTokenSent(0, 9)).isEqualTo(4);
        assertThat(group.firstTokenSent(6, 9)).isEqualTo(6);
    }

    @Test
    void shouldSendNoPageThatLiesBeforeTheLastTokensChunk() {
        KvGroup group = Shapes.group(new GroupKind.ChunkedLocal(6), PageLayout.HND, 1, 4);
        assertThat(group.firstTokenSent(0, 6)).isZero();
        assertThat(group.firstTokenSent(0, 7)).isEqualTo(4);
        assertThat(group.firstTokenSent(0, 12)).isEqualTo(4);
        assertThat(group.firstTokenSent(0, 13)).isEqualTo(12);
        assertThat(group.firstTokenSent(8, 12)).isEqualTo(8);
        assertThat(group.pagesFor(0, 12)).isEqualTo(2);
    }

    /** One page a request, whatever its length; it has no tokens that one side could cut otherwise. */
    @Test
    void shouldSendStateAsOnePage() {
        KvGroup state = new KvGroup(
                GroupKind.STATE, "float32", 1, KvGroup.STATE_PAGE_TOKENS, PageLayout.LATENT, 1, Shapes.PAGE_COUNT);
        assertThat(state.pagesFor(0, 1)).isEqualTo(1);
        assertThat(state.pagesFor(0, 1 << 20)).isEqualTo(1);
        KvGroup full = Shapes.group(PageLayout.HND, 2, 2);
        KvGeometry geometry = new KvGeometry(
                "m",
                new Sharding(1, 1, 1),
                List.of(full, state),
                List.of(new RankGeometry(
                        0,
                        0,
                        List.of(new LayerGeometry("a", 0, 0, 0, 8, 8), new LayerGeometry("b", 1, 0, 100, 50, 40)))));
        assertThat(ExpectedWrites.pieceCount(geometry, geometry, 0, 0, 9)).isEqualTo(5 + 1);
        assertThat(LayoutPlanner.plan(geometry, geometry).piecesOfLayer(1))
                .singleElement()
                .satisfies(piece -> assertThat(piece.lengthBytes()).isEqualTo(40));
        assertThatThrownBy(() -> new KvGroup(GroupKind.STATE, "float32", 1, 16, PageLayout.LATENT, 1, 4))
                .hasMessageContaining("kind \"state\" has pages of 16 tokens with layout LATENT, expected 1073741824");
    }

    /** What a rank keeps of a state is a whole to its engine: it goes to the twin, and to no engine of other ranks. */
    @Test
    void shouldSendEachRanksPartOfAStateToItsTwin() {
        KvGeometry two = stateOf(2);
        LayoutPlanner.plan(two, two)
                .piecesOfLayer(0)
                .forEach(piece -> assertThat(piece.sourceRankIndex()).isEqualTo(piece.targetRankIndex()));
        assertThat(LayoutPlanner.plan(two, two).piecesOfLayer(0)).hasSize(2);
        for (int rank = 0; rank < 2; rank++) {
            assertThat(ExpectedWrites.pieceCount(two, two, rank, 0, 9)).isEqualTo(1);
        }
        assertThat(Compatibility.check(two, stateOf(1)))
                .hasValueSatisfying(mismatch -> assertThat(mismatch.field()).isEqualTo("kvHeadCount"));
    }

    private static KvGeometry stateOf(int tpSize) {
        KvGroup state = new KvGroup(
                GroupKind.STATE, "float32", 1, KvGroup.STATE_PAGE_TOKENS, PageLayout.HND, tpSize, Shapes.PAGE_COUNT);
        List<RankGeometry> ranks = IntStream.range(0, tpSize)
                .mapToObj(rank -> new RankGeometry(rank, 0, List.of(new LayerGeometry("a", 0, 0, 0, 40, 40))))
                .toList();
        return new KvGeometry("m", new Sharding(tpSize, 1, 1), List.of(state), ranks);
    }

    /** The smaller pages before the window are given away, and the larger one keeps their place. */
    @Test
    void shouldRefuseWindowsOverPagesOfDifferentSizes() {
        KvGeometry source = Shapes.geometry(List.of(Shapes.windowed(4, PageLayout.NHD, 2, 2)), LAYERS, 1, 1);
        KvGeometry target = Shapes.geometry(List.of(Shapes.windowed(4, PageLayout.NHD, 2, 4)), LAYERS, 1, 1);
        assertThat(Compatibility.check(source, target)).contains(new Mismatch("pageTokens", "2", "4"));
        KvGeometry other = Shapes.geometry(List.of(Shapes.windowed(5, PageLayout.NHD, 2, 2)), LAYERS, 1, 1);
        assertThat(Compatibility.check(source, other)).contains(new Mismatch("windowTokens", "4", "5"));
    }

    /** Three replicas of one group and two of the other: six draws, of which each group sees each of its own equally often. */
    @Test
    void shouldDrawForEachGroupFromItsOwnReplicas() {
        List<KvGroup> groups = List.of(Shapes.group(PageLayout.HND, 2, 2), Shapes.group(PageLayout.HND, 3, 2));
        KvGeometry source = Shapes.geometry(groups, 2, 6, 1);
        KvGeometry target = Shapes.geometry(groups, 2, 1, 1);
        assertThat(SourceDraw.variantCount(source, target)).isEqualTo(6);
        long[] carried = new long[12];
        for (int rotation = 0; rotation < 6; rotation++) {
            SourceDraw draw = new SourceDraw(rotation);
            CarriedOut.check(List.of(source), target, draw, 0, 5);
            LayoutPlanner.plan(source, target, draw)
                    .pieces()
                    .forEach(piece -> carried[2 * piece.sourceRankIndex() + piece.groupIndex()]++);
        }
        for (int rank = 0; rank < 6; rank++) {
            assertThat(carried[2 * rank]).isEqualTo(2);
            assertThat(carried[2 * rank + 1]).isEqualTo(3);
        }
    }

    /** Pages of different groups are different pages, also where their layers lie side by side. */
    @Test
    void shouldJoinOnlyLayersOfOneGroup() {
        KvGroup group = Shapes.group(PageLayout.HND, 2, 2);
        KvGeometry mixed = Shapes.pagesOutermost(Shapes.geometry(List.of(group, group), LAYERS, 1, 1));
        TransferPlan plan = LayoutPlanner.plan(mixed, mixed);
        for (int i = 0; i < plan.pieceCount(); i++) {
            assertThat(plan.continuation(i)).isEqualTo(TransferPlan.NONE);
        }
        CarriedOut.check(mixed, mixed, 2, 7);
    }

    /** Each stage's messenger names all groups, also those that it has no layer of. */
    @Test
    void shouldExpectTheSamePiecesFromStagesThatHaveLayersOfSomeGroupsOnly() {
        List<KvGroup> groups = List.of(Shapes.group(PageLayout.HND, 2, 2), Shapes.group(PageLayout.HND, 1, 4));
        KvGeometry source = Shapes.geometry(groups, 2, 2, 2);
        KvGeometry target = Shapes.geometry(groups, 2, 1, 1);
        List<KvGeometry> messengers = new ArrayList<>();
        source.ranks().forEach(rank -> messengers.add(Shapes.withRanks(source, List.of(rank))));
        for (int rotation = 0; rotation < SourceDraw.variantCount(source, target); rotation++) {
            CarriedOut.check(messengers, target, new SourceDraw(rotation), 4, 7);
        }
    }

    @Test
    void shouldRefuseALayerOfTwoGroups() {
        KvGroup group = Shapes.group(PageLayout.HND, 2, 2);
        LayerGeometry inFirst = new LayerGeometry("a", 0, 0, 0, 4, 4);
        LayerGeometry inSecond = new LayerGeometry("a", 1, 0, 0, 4, 4);
        assertThatThrownBy(() -> new KvGeometry(
                        "m",
                        new Sharding(1, 2, 1),
                        List.of(group, group),
                        List.of(new RankGeometry(0, 0, List.of(inFirst)), new RankGeometry(0, 1, List.of(inSecond)))))
                .hasMessage("layer \"a\" is in KV group 1 on one rank and in 0 on another, expected the same on all");
    }

    @Test
    void shouldParseTheKindsThatThereAre() {
        assertThat(GroupKind.parse(GroupKind.FULL_ATTENTION.name(), 0)).isEqualTo(GroupKind.FULL_ATTENTION);
        assertThat(GroupKind.parse("window", 256)).isEqualTo(new GroupKind.SlidingWindow(256));
        assertThat(GroupKind.parse("chunk", 256)).isEqualTo(new GroupKind.ChunkedLocal(256));
        assertThat(GroupKind.parse("state", 0)).isEqualTo(GroupKind.STATE);
        assertThatThrownBy(() -> GroupKind.parse("mamba", 0))
                .hasMessage(
                        "kind of a KV group is \"mamba\" with windowTokens 0, expected \"full\" or \"state\" with 0, or"
                                + " \"window\" or \"chunk\" with at least 1: serve a model whose layers have full attention, a"
                                + " sliding window, chunked local attention or state");
        assertThatThrownBy(() -> GroupKind.parse("full", 256)).hasMessageContaining("windowTokens 256");
        assertThatThrownBy(() -> GroupKind.parse("window", 0)).hasMessageContaining("windowTokens 0");
        assertThatThrownBy(() -> GroupKind.parse("chunk", 0)).hasMessageContaining("windowTokens 0");
    }
}
