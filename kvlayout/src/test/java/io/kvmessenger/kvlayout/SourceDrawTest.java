package io.kvmessenger.kvlayout;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class SourceDrawTest {
    private static final int TRANSFER_COUNT = 20_000;
    /** Of a rank's even share of all pieces. */
    private static final double TOLERANCE = 0.05;

    private static String transferId(int number) {
        return "cmpl-" + number * 7919L;
    }

    /** A latent model and GQA with fewer heads than ranks, towards fewer, as many and more target replicas. */
    @ParameterizedTest
    @CsvSource({"1, 8, 1", "1, 8, 2", "1, 8, 8", "1, 2, 8", "4, 8, 4", "4, 8, 1", "2, 8, 4", "8, 16, 8", "1, 3, 2"})
    void shouldGiveEverySourceRankItsShareOverManyTransfers(int heads, int sourceTp, int targetTp) {
        KvGeometry source = Shapes.geometry(PageLayout.HND, heads, 2, 1, sourceTp, 1);
        KvGeometry target = Shapes.geometry(PageLayout.HND, heads, 2, 1, targetTp, 1);
        TransferPlan[] plans = IntStream.range(0, SourceDraw.variantCount(source, target))
                .mapToObj(rotation -> LayoutPlanner.plan(source, target, new SourceDraw(rotation)))
                .toArray(TransferPlan[]::new);
        int[] transferCounts = new int[plans.length];
        for (int i = 0; i < TRANSFER_COUNT; i++) {
            transferCounts[SourceDraw.of(transferId(i), source, target).rotation()]++;
        }
        long[] carried = new long[sourceTp];
        for (int rotation = 0; rotation < plans.length; rotation++) {
            int transfers = transferCounts[rotation];
            plans[rotation].pieces().forEach(piece -> carried[piece.sourceRankIndex()] += transfers);
        }
        double share = (double) TRANSFER_COUNT * plans[0].pieceCount() / sourceTp;
        for (long pieces : carried) {
            assertThat(pieces / share).isCloseTo(1, within(TOLERANCE));
        }
    }

    @Test
    void shouldFillTheTargetOnceWhateverIsDrawn() {
        for (int heads : new int[] {1, 2, 4}) {
            for (int sourceTp = heads; sourceTp <= 8; sourceTp += heads) {
                for (int targetTp = 1; targetTp <= 8; targetTp *= 2) {
                    KvGeometry source = Shapes.geometry(PageLayout.HND, heads, 2, 2, sourceTp, 1);
                    KvGeometry target = Shapes.geometry(PageLayout.HND, heads, 2, 2, targetTp, 1);
                    for (int rotation = 0; rotation < SourceDraw.variantCount(source, target); rotation++) {
                        SourceDraw draw = new SourceDraw(rotation);
                        CarriedOut.check(List.of(source), target, draw, 0, 4);
                    }
                }
            }
        }
    }

    /** One messenger for each rank, or for each node: together they send what one for all would. */
    @Test
    void shouldFillTheTargetOnceFromSeveralMessengers() {
        for (int heads : new int[] {1, 2, 8}) {
            KvGeometry source = Shapes.geometry(PageLayout.HND, heads, 2, 2, 8, 2);
            KvGeometry target = Shapes.geometry(PageLayout.HND, heads, 2, 2, 2, 1);
            for (int ranksPerMessenger : new int[] {1, 4, 8}) {
                List<KvGeometry> messengers = IntStream.range(0, source.ranks().size() / ranksPerMessenger)
                        .mapToObj(m -> Shapes.withRanks(
                                source, source.ranks().subList(m * ranksPerMessenger, (m + 1) * ranksPerMessenger)))
                        .toList();
                assertThat(Compatibility.checkCoverage(messengers, target)).isEmpty();
                for (int rotation = 0; rotation < SourceDraw.variantCount(source, target); rotation++) {
                    SourceDraw draw = new SourceDraw(rotation);
                    CarriedOut.check(messengers, target, draw, 2, 5);
                }
            }
        }
    }

    @Test
    void shouldSendFromTheTwinWhenBothSidesHaveTheSameReplicas() {
        KvGeometry side = Shapes.geometry(PageLayout.LATENT, 1, 2, 1, 8, 1);
        for (int i = 0; i < 100; i++) {
            assertThat(LayoutPlanner.plan(side, side, SourceDraw.of(transferId(i), side, side))
                            .pieces())
                    .allMatch(piece -> piece.sourceRankIndex() == piece.targetRankIndex());
        }
    }

    @Test
    void shouldLetReplicasTakeTurnsWhenTheTargetHasMore() {
        KvGeometry source = Shapes.geometry(PageLayout.LATENT, 1, 2, 1, 4, 1);
        KvGeometry target = Shapes.geometry(PageLayout.LATENT, 1, 2, 1, 8, 1);
        int[] sendersByTarget = new int[8];
        LayoutPlanner.plan(source, target)
                .pieces()
                .forEach(piece -> sendersByTarget[piece.targetRankIndex()] = piece.sourceRankIndex());
        assertThat(sendersByTarget).containsExactly(0, 1, 2, 3, 0, 1, 2, 3);
    }

    /** The decoder of another version draws the same: these numbers never change. */
    @Test
    void shouldDrawTheSameInEveryProcessAndVersion() {
        KvGeometry source = Shapes.geometry(PageLayout.LATENT, 1, 2, 1, 8, 1);
        KvGeometry target = Shapes.geometry(PageLayout.LATENT, 1, 2, 1, 1, 1);
        assertThat(IntStream.range(0, 12)
                        .map(i -> SourceDraw.of(transferId(i), source, target).rotation()))
                .containsExactly(5, 1, 0, 2, 5, 6, 1, 6, 0, 2, 1, 7);
    }
}
