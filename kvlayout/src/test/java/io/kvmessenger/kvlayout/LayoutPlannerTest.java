package io.kvmessenger.kvlayout;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class LayoutPlannerTest {
    private static final int SHARD_MAX = 8;
    private static final int HEAD_MAX = 8;
    private static final int TOKEN_MAX = 3;
    private static final int LAYER_MAX = 3;
    private static final List<PageLayout> LAYOUTS = List.of(PageLayout.HND, PageLayout.NHD, PageLayout.LATENT);

    /** The sharding must be possible on both sides. */
    private static boolean possible(int heads, int sourceTp, int targetTp) {
        return Shapes.divides(sourceTp, heads) && Shapes.divides(targetTp, heads);
    }

    private static int headMax(PageLayout layout) {
        return layout.equals(PageLayout.LATENT) ? 1 : HEAD_MAX;
    }

    @Test
    void shouldTileEveryTargetPageWithTheRightBytesAndTheExpectedCountForAllSmallTensorShardings() {
        int shapeCount = 0;
        for (PageLayout layout : LAYOUTS) {
            for (int heads = 1; heads <= headMax(layout); heads++) {
                for (int tokens = 1; tokens <= TOKEN_MAX; tokens++) {
                    for (int sourceTp = 1; sourceTp <= SHARD_MAX; sourceTp++) {
                        for (int targetTp = 1; targetTp <= SHARD_MAX; targetTp++) {
                            if (possible(heads, sourceTp, targetTp)) {
                                CarriedOut.check(
                                        Shapes.geometry(layout, heads, tokens, 2, sourceTp, 1),
                                        Shapes.geometry(layout, heads, tokens, 2, targetTp, 1),
                                        0,
                                        2 * tokens);
                                shapeCount++;
                            }
                        }
                    }
                }
            }
        }
        assertThat(shapeCount).isGreaterThan(1000);
    }

    @Test
    void shouldTileTheTargetWhenOnePageSizeIsAMultipleOfTheOtherForAllSmallShapesAndTokenRanges() {
        int shapeCount = 0;
        for (PageLayout layout : List.of(PageLayout.NHD, PageLayout.LATENT)) {
            for (int heads = 1; heads <= Math.min(4, headMax(layout)); heads++) {
                for (int tokens = 1; tokens <= 2; tokens++) {
                    for (int multiple = 2; multiple <= 3; multiple++) {
                        for (int sourceTp = 1; sourceTp <= 4; sourceTp++) {
                            for (int targetTp = 1; targetTp <= 4; targetTp++) {
                                if (possible(heads, sourceTp, targetTp)) {
                                    int larger = tokens * multiple;
                                    checkAllRanges(
                                            Shapes.geometry(layout, heads, tokens, 2, sourceTp, 1),
                                            Shapes.geometry(layout, heads, larger, 2, targetTp, 1));
                                    checkAllRanges(
                                            Shapes.geometry(layout, heads, larger, 2, sourceTp, 1),
                                            Shapes.geometry(layout, heads, tokens, 2, targetTp, 1));
                                    shapeCount += 2;
                                }
                            }
                        }
                    }
                }
            }
        }
        assertThat(shapeCount).isGreaterThan(300);
    }

    /**
     * What vLLM's NIXL connector documents of its heads under different TP sizes, where one size divides the other: with
     * the decoder's larger, its rank {@code d} reads slice {@code d % ratio} of prefiller rank {@code d / ratio}; with the
     * prefiller's larger, it reads all of ranks {@code d * ratio} to {@code (d + 1) * ratio}, one behind the other.
     */
    @ParameterizedTest
    @CsvSource({"1, 2", "2, 4", "1, 8", "4, 8", "2, 2", "2, 1", "4, 2", "8, 1", "8, 4"})
    void shouldSplitHeadsAsNixlDoes(int sourceTp, int targetTp) {
        int pageTokens = 4;
        int sliceBytes = 8 / Math.max(sourceTp, targetTp) * pageTokens; // layer 0 has one byte for a head and token
        TransferPlan plan = LayoutPlanner.plan(
                Shapes.geometry(PageLayout.HND, 8, pageTokens, 1, sourceTp, 1),
                Shapes.geometry(PageLayout.HND, 8, pageTokens, 1, targetTp, 1));
        assertThat(plan.pieceCount()).isEqualTo(Math.max(sourceTp, targetTp));
        for (int i = 0; i < plan.pieceCount(); i++) {
            Piece piece = plan.piece(i);
            int source = piece.sourceRankIndex();
            int target = piece.targetRankIndex();
            int spread = Math.max(1, targetTp / sourceTp);
            int gathered = Math.max(1, sourceTp / targetTp);
            assertThat(source / gathered).isEqualTo(target / spread);
            assertThat(piece.lengthBytes()).isEqualTo(sliceBytes);
            assertThat(piece.source().byteInPage()).isEqualTo(target % spread * sliceBytes);
            assertThat(piece.target().byteInPage()).isEqualTo(source % gathered * sliceBytes);
        }
    }

    private static void checkAllRanges(KvGeometry source, KvGeometry target) {
        for (int tokenCount = 1; tokenCount <= 7; tokenCount++) {
            for (int firstToken = 0;
                    firstToken < tokenCount;
                    firstToken += target.groups().getFirst().pageTokens()) {
                CarriedOut.check(source, target, firstToken, tokenCount);
            }
        }
    }

    @Test
    void shouldFindEachLayerOnItsStageForAllSmallPipelineShardings() {
        for (int layers = 1; layers <= LAYER_MAX; layers++) {
            for (int sourcePp = 1; sourcePp <= layers; sourcePp++) {
                for (int targetPp = 1; targetPp <= layers; targetPp++) {
                    for (int targetTp = 1; targetTp <= 4; targetTp *= 2) {
                        CarriedOut.check(
                                Shapes.geometry(PageLayout.HND, 4, 2, layers, 2, sourcePp),
                                Shapes.geometry(PageLayout.HND, 4, 2, layers, targetTp, targetPp),
                                0,
                                5);
                    }
                }
            }
        }
    }

    /** Layers shuffled and of different page bytes on both sides, as in hybrid models and with draft layers behind. */
    @Test
    void shouldFindLayersByNameWhereverTheyLie() {
        KvGeometry source = Shapes.geometry(PageLayout.HND, 4, 2, LAYER_MAX, 2, 1);
        KvGeometry target = Shapes.pagesOutermost(Shapes.geometry(PageLayout.HND, 4, 2, LAYER_MAX, 4, 1));
        List<RankGeometry> reversed = target.ranks().stream()
                .map(r -> new RankGeometry(r.tpRank(), r.ppRank(), r.layers().reversed()))
                .toList();
        CarriedOut.check(source, Shapes.withRanks(target, reversed), 2, 7);
    }

    @Test
    void shouldSendOneWholePageFromEachRankToItsTwinWhenShardingIsEqual() {
        for (PageLayout layout : List.of(PageLayout.HND, PageLayout.NHD)) {
            for (int tp = 1; tp <= 8; tp *= 2) {
                KvGeometry geometry = Shapes.geometry(layout, 4, 2, LAYER_MAX, tp, 1);
                TransferPlan plan = LayoutPlanner.plan(geometry, geometry);
                assertThat(plan.layerCount()).isEqualTo(LAYER_MAX);
                for (int layer = 0; layer < LAYER_MAX; layer++) {
                    int pageBytes =
                            geometry.ranks().getFirst().layers().get(layer).pageBytes();
                    assertThat(plan.piecesOfLayer(layer)).hasSize(tp);
                    for (Piece piece : plan.piecesOfLayer(layer)) {
                        int rank = piece.sourceRankIndex();
                        PageParts whole = PageParts.whole(0);
                        assertThat(piece).isEqualTo(new Piece(rank, rank, layer, layer, 0, 2, whole, whole, pageBytes));
                    }
                }
            }
        }
    }

    private static Piece run(int source, int target, int sourceByte, int targetByte, int lengthBytes) {
        return new Piece(
                source, target, 0, 0, 0, 2, PageParts.whole(sourceByte), PageParts.whole(targetByte), lengthBytes);
    }

    @Test
    void shouldCutOneContiguousRunPerSourceRankUnderHndWhenTheTargetHasFewerRanks() {
        KvGeometry source = Shapes.geometry(PageLayout.HND, 4, 2, 1, 4, 1);
        KvGeometry target = Shapes.geometry(PageLayout.HND, 4, 2, 1, 2, 1);
        assertThat(LayoutPlanner.plan(source, target).piecesOfLayer(0))
                .containsExactlyInAnyOrder(
                        run(0, 0, 0, 0, 2), run(1, 0, 0, 2, 2), run(2, 1, 0, 0, 2), run(3, 1, 0, 2, 2));
    }

    @Test
    void shouldOverlapHeadRangesWhenNeitherTensorSizeDividesTheOther() {
        KvGeometry source = Shapes.geometry(PageLayout.HND, 12, 2, 1, 4, 1);
        KvGeometry target = Shapes.geometry(PageLayout.HND, 12, 2, 1, 6, 1);
        assertThat(LayoutPlanner.plan(source, target).pieces().filter(p -> p.targetRankIndex() < 3))
                .containsExactly(run(0, 0, 0, 0, 4), run(0, 1, 4, 0, 2), run(1, 1, 0, 2, 2), run(1, 2, 2, 0, 4));
        CarriedOut.check(source, target, 2, 7);
    }

    @Test
    void shouldTakeNhdPagesApartTokenByTokenAndSaySoWhenHeadsAreSplit() {
        KvGeometry source = Shapes.geometry(PageLayout.NHD, 4, 2, 1, 1, 1);
        KvGeometry target = Shapes.geometry(PageLayout.NHD, 4, 2, 1, 2, 1);
        assertThat(LayoutPlanner.plan(source, target).pieces())
                .containsExactly(
                        new Piece(0, 0, 0, 0, 0, 1, new PageParts(0, 2, 4), new PageParts(0, 2, 2), 2),
                        new Piece(0, 1, 0, 0, 0, 1, new PageParts(2, 2, 4), new PageParts(0, 2, 2), 2))
                .allMatch(Piece::isStrided);
        assertThat(LayoutPlanner.plan(source, source).pieces()).noneMatch(Piece::isStrided);
    }

    @ParameterizedTest
    @CsvSource({"LATENT, 1, 1", "NHD, 2, 1"})
    void shouldCutTheLargerPageIntoTheSmallerOnes(String layout, int heads, int piecesPerSmallPage) {
        KvGeometry small = Shapes.geometry(PageLayout.parse(layout), heads, 2, 1, 1, 1);
        KvGeometry large = Shapes.geometry(PageLayout.parse(layout), heads, 6, 1, 1, 1);
        assertThat(LayoutPlanner.plan(small, large).pieces())
                .hasSize(piecesPerSmallPage)
                .allMatch(piece -> piece.partTokens() == 2)
                .allMatch(piece -> piece.source().countPerPage() == 1)
                .allMatch(piece -> piece.target().countPerPage() == 3)
                .noneMatch(Piece::isStrided);
        assertThat(ExpectedWrites.pieceCount(small, large, 0, 6, 11)).isEqualTo(3L * piecesPerSmallPage);
    }

    @Test
    void shouldPlanFromRankToTwinWhenEachMessengerServesOneRank() {
        KvGeometry whole = Shapes.geometry(PageLayout.HND, 4, 2, 2, 2, 1);
        KvGeometry second = Shapes.withRanks(whole, whole.ranks().subList(1, 2));
        CarriedOut.check(second, second, 0, 4);
    }

    @Test
    void shouldRefuseWhenTheServedSourceRanksLackHeads() {
        KvGeometry whole = Shapes.geometry(PageLayout.HND, 4, 2, 2, 2, 1);
        KvGeometry second = Shapes.withRanks(whole, whole.ranks().subList(1, 2));
        assertThatThrownBy(() -> LayoutPlanner.plan(second, whole))
                .isInstanceOf(PlanException.class)
                .hasMessage("the prefiller's sharding is TP 2 x PP 1 x DP 1 (1 of 2 ranks), the decoder's is"
                        + " TP 2 x PP 1 x DP 1 (2 of 2 ranks): start both with the same");
    }

    @Test
    void shouldJoinLayersThatLieSideBySideOnBothSides() {
        KvGeometry apart = Shapes.geometry(PageLayout.HND, 2, 2, LAYER_MAX, 2, 1);
        KvGeometry together = Shapes.pagesOutermost(apart);
        TransferPlan joined = LayoutPlanner.plan(together, together);
        assertThat(joined.pieceCount()).isEqualTo(2 * LAYER_MAX);
        for (int i = 0; i < joined.pieceCount(); i++) {
            Piece piece = joined.piece(i);
            int next = joined.continuation(i);
            if (piece.layerIndex() == LAYER_MAX - 1) {
                assertThat(next).isEqualTo(TransferPlan.NONE);
            } else {
                assertThat(joined.piece(next).layerIndex()).isEqualTo(piece.layerIndex() + 1);
                assertThat(joined.piece(next).sourceRankIndex()).isEqualTo(piece.sourceRankIndex());
            }
        }
        for (KvGeometry source : List.of(apart, together)) {
            TransferPlan plan = LayoutPlanner.plan(source, apart);
            for (int i = 0; i < plan.pieceCount(); i++) {
                assertThat(plan.continuation(i)).isEqualTo(TransferPlan.NONE);
            }
        }
    }

    @Test
    void shouldNotJoinHeadRangesThatAreApartInTheTarget() {
        KvGeometry split = Shapes.pagesOutermost(Shapes.geometry(PageLayout.HND, 4, 2, LAYER_MAX, 2, 1));
        KvGeometry alone = Shapes.pagesOutermost(Shapes.geometry(PageLayout.HND, 4, 2, LAYER_MAX, 1, 1));
        TransferPlan plan = LayoutPlanner.plan(split, alone);
        for (int i = 0; i < plan.pieceCount(); i++) {
            assertThat(plan.continuation(i)).isEqualTo(TransferPlan.NONE);
        }
    }
}
