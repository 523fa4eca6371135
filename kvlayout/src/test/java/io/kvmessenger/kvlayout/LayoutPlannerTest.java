package io.kvmessenger.kvlayout;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;

class LayoutPlannerTest {
    private static final int SHARD_MAX = 8;
    private static final int HEAD_MAX = 8;
    private static final int TOKEN_MAX = 3;
    private static final int LAYER_MAX = 3;

    /** What a byte of a page holds: tells every (layer, head, token, byte of the row) apart. */
    private static int content(PageLayout layout, KvGeometry geometry, RankGeometry rank, int layerNumber, int at) {
        int rowBytes = layerNumber + 1;
        int headCount = rank.heads().count();
        int tokenCount = geometry.pageTokens();
        int row = at / rowBytes;
        int head = switch (layout) {
            case PageLayout.Hnd() -> row / tokenCount;
            case PageLayout.Nhd() -> row % headCount;
            case PageLayout.Latent() -> 0;
        };
        int token = switch (layout) {
            case PageLayout.Hnd() -> row % tokenCount;
            case PageLayout.Nhd() -> row / headCount;
            case PageLayout.Latent() -> row;
        };
        return (((layerNumber * HEAD_MAX + rank.heads().from() + head) * TOKEN_MAX + token) << 4) + at % rowBytes;
    }

    private static int layerNumber(LayerGeometry layer) {
        return Integer.parseInt(layer.name().substring("layers.".length()));
    }

    /** Carries the plan out on a page of every layer; every target byte must be written once, with what belongs there. */
    private static void carryOut(KvGeometry source, KvGeometry target) {
        TransferPlan plan = LayoutPlanner.plan(source, target);
        int[][][] pages = new int[target.ranks().size()][][];
        long[] pieceCounts = new long[target.ranks().size()];
        for (int r = 0; r < pages.length; r++) {
            List<LayerGeometry> layers = target.ranks().get(r).layers();
            pages[r] = new int[layers.size()][];
            for (int l = 0; l < layers.size(); l++) {
                pages[r][l] = new int[layers.get(l).pageBytes()];
                Arrays.fill(pages[r][l], -1);
            }
        }
        plan.pieces().forEach(piece -> {
            RankGeometry from = source.ranks().get(piece.sourceRankIndex());
            LayerGeometry fromLayer = from.layers().get(piece.layerIndex());
            int[] page = pages[piece.targetRankIndex()][piece.targetLayerIndex()];
            pieceCounts[piece.targetRankIndex()]++;
            assertThat(piece.lengthBytes()).isPositive();
            assertThat(piece.sourceByteInPage() + piece.lengthBytes()).isLessThanOrEqualTo(fromLayer.pageBytes());
            for (int i = 0; i < piece.lengthBytes(); i++) {
                assertThat(page[piece.targetByteInPage() + i])
                        .as("written twice")
                        .isEqualTo(-1);
                page[piece.targetByteInPage() + i] =
                        content(source.layout(), source, from, layerNumber(fromLayer), piece.sourceByteInPage() + i);
            }
        });
        for (int r = 0; r < pages.length; r++) {
            RankGeometry rank = target.ranks().get(r);
            for (int l = 0; l < pages[r].length; l++) {
                for (int i = 0; i < pages[r][l].length; i++) {
                    int number = layerNumber(rank.layers().get(l));
                    if (pages[r][l][i] != content(target.layout(), target, rank, number, i)) {
                        throw new AssertionError("rank " + r + " layer " + l + " byte " + i + " of " + target
                                + " holds something else or nothing, from " + source);
                    }
                }
            }
            assertThat(ExpectedWrites.pagePieces(source, target, r, 1)).isEqualTo(pieceCounts[r]);
            assertThat(ExpectedWrites.pagePieces(source, target, r, 7)).isEqualTo(7 * pieceCounts[r]);
        }
    }

    @Test
    void shouldTileEveryTargetPageWithTheRightBytesAndTheExpectedCountForAllSmallTensorShardings() {
        int shapeCount = 0;
        for (PageLayout layout : List.of(PageLayout.HND, PageLayout.NHD, PageLayout.LATENT)) {
            int headMax = layout.equals(PageLayout.LATENT) ? 1 : HEAD_MAX;
            for (int heads = 1; heads <= headMax; heads++) {
                for (int tokens = 1; tokens <= TOKEN_MAX; tokens++) {
                    for (int sourceTp = 1; sourceTp <= SHARD_MAX; sourceTp++) {
                        for (int targetTp = 1; targetTp <= SHARD_MAX; targetTp++) {
                            if (Shapes.divides(sourceTp, heads) && Shapes.divides(targetTp, heads)) {
                                carryOut(
                                        Shapes.geometry(layout, heads, tokens, 2, sourceTp, 1),
                                        Shapes.geometry(layout, heads, tokens, 2, targetTp, 1));
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
    void shouldFindEachLayerOnItsStageForAllSmallPipelineShardings() {
        for (int layers = 1; layers <= LAYER_MAX; layers++) {
            for (int sourcePp = 1; sourcePp <= layers; sourcePp++) {
                for (int targetPp = 1; targetPp <= layers; targetPp++) {
                    for (int targetTp = 1; targetTp <= 4; targetTp *= 2) {
                        carryOut(
                                Shapes.geometry(PageLayout.HND, 4, 2, layers, 2, sourcePp),
                                Shapes.geometry(PageLayout.HND, 4, 2, layers, targetTp, targetPp));
                    }
                }
            }
        }
    }

    @Test
    void shouldSendOneWholePageFromEachRankToItsTwinWhenShardingIsEqual() {
        for (PageLayout layout : List.of(PageLayout.HND, PageLayout.NHD)) {
            for (int tp = 1; tp <= 8; tp *= 2) {
                KvGeometry geometry = Shapes.geometry(layout, 4, 2, LAYER_MAX, tp, 1);
                TransferPlan plan = LayoutPlanner.plan(geometry, geometry);
                assertThat(plan.layerCount()).isEqualTo(LAYER_MAX);
                for (int layer = 0; layer < LAYER_MAX; layer++) {
                    assertThat(plan.piecesOfLayer(layer)).hasSize(tp);
                    for (Piece piece : plan.piecesOfLayer(layer)) {
                        int pageBytes =
                                geometry.ranks().getFirst().layers().get(layer).pageBytes();
                        assertThat(piece)
                                .isEqualTo(new Piece(
                                        piece.sourceRankIndex(),
                                        piece.sourceRankIndex(),
                                        layer,
                                        layer,
                                        0,
                                        0,
                                        pageBytes));
                    }
                }
            }
        }
    }

    @Test
    void shouldCutOneContiguousRunPerSourceRankUnderHndWhenTheTargetHasFewerRanks() {
        KvGeometry source = Shapes.geometry(PageLayout.HND, 4, 2, 1, 4, 1);
        KvGeometry target = Shapes.geometry(PageLayout.HND, 4, 2, 1, 2, 1);
        assertThat(LayoutPlanner.plan(source, target).piecesOfLayer(0))
                .containsExactlyInAnyOrder(
                        new Piece(0, 0, 0, 0, 0, 0, 2),
                        new Piece(1, 0, 0, 0, 0, 2, 2),
                        new Piece(2, 1, 0, 0, 0, 0, 2),
                        new Piece(3, 1, 0, 0, 0, 2, 2));
    }

    @Test
    void shouldLetAllReplicasOfTheSourceWorkWhenTheTargetHasReplicasToo() {
        KvGeometry source = Shapes.geometry(PageLayout.LATENT, 1, 2, 1, 4, 1);
        KvGeometry target = Shapes.geometry(PageLayout.LATENT, 1, 2, 1, 8, 1);
        assertThat(LayoutPlanner.plan(source, target).pieces().map(Piece::sourceRankIndex))
                .containsExactly(0, 1, 2, 3, 0, 1, 2, 3);
    }

    @Test
    void shouldPlanFromRankToTwinWhenEachMessengerServesOneRank() {
        KvGeometry whole = Shapes.geometry(PageLayout.HND, 4, 2, 2, 2, 1);
        KvGeometry second = Shapes.withRanks(whole, whole.ranks().subList(1, 2));
        carryOut(second, second);
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
}
