package io.kvmessenger.kvlayout;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Pages that are divided among ranks which compute the same. */
class DividedPagesTest {
    private static KvGeometry latent(int tpSize, int ppSize, int pageTokens, int pageShares) {
        KvGroup group = new KvGroup(
                GroupKind.FULL_ATTENTION,
                "float32",
                4,
                pageTokens,
                PageLayout.LATENT,
                1,
                Shapes.PAGE_COUNT,
                pageShares);
        return Shapes.geometry(List.of(group), 3, tpSize, ppSize);
    }

    @ParameterizedTest
    @CsvSource({"2,1,1", "2,1,2", "4,1,4", "4,1,1", "2,2,2"})
    void shouldExpectOfEveryRankTheWholePromptAtMost(int sourceTp, int sourcePp, int targetTp) {
        KvGeometry source = latent(sourceTp, sourcePp, 4, sourceTp);
        KvGeometry target = latent(targetTp, 1, 4, 1);
        assertThat(Compatibility.check(source, target)).isEmpty();
        assertThat(SourceDraw.variantCount(source, target)).isEqualTo(1);
        TransferPlan plan = LayoutPlanner.plan(source, target);
        assertThat(plan.pieceCount()).isEqualTo(3 * sourceTp * targetTp);
        for (int rank = 0; rank < targetTp; rank++) {
            long all = ExpectedWrites.pieceCount(source, target, rank, 4, 18);
            assertThat(all).isEqualTo(3L * 4 * sourceTp);
            assertThat(ExpectedWrites.pieceCountFrom(source, target, rank, 4, 18, SourceDraw.TWINS))
                    .isEqualTo(all);
        }
        int stages = source.ranks().stream()
                .mapToInt(rank -> ExpectedWrites.piecesOfPage(source, rank, target, 0))
                .sum();
        assertThat(stages).isEqualTo(plan.pieceCount());
    }

    @Test
    void shouldRefuseOtherPageSizesAndASideThatReceivesIntoDividedPages() {
        KvGeometry divided = latent(2, 1, 4, 2);
        assertThat(Compatibility.check(divided, latent(2, 1, 2, 1)))
                .hasValueSatisfying(found -> assertThat(found.field()).isEqualTo("pageTokens"));
        assertThat(Compatibility.check(latent(2, 1, 4, 1), divided))
                .hasValueSatisfying(found ->
                        assertThat(found.sentence()).contains("pageShares", "expected 1 on a side that receives"));
    }

    @Test
    void shouldRefuseAShareThatIsMissingOrThereTwice() {
        KvGeometry whole = latent(2, 1, 4, 2);
        KvGeometry first = Shapes.withRanks(whole, List.of(whole.ranks().getFirst()));
        KvGeometry second = Shapes.withRanks(whole, List.of(whole.ranks().getLast()));
        KvGeometry target = latent(1, 1, 4, 1);
        assertThat(Compatibility.checkCoverage(List.of(first, second), target)).isEmpty();
        assertThat(Compatibility.checkCoverage(List.of(whole), target)).isEmpty();
        Map<List<KvGeometry>, String> wrong = Map.of(
                List.of(first), "(1 of 2 ranks) without the pages of TP rank 1,",
                List.of(second), "(1 of 2 ranks) without the pages of TP rank 0,",
                List.of(second, second), " without the pages of TP rank 0 with twice the pages of TP rank 1,",
                List.of(whole, first), "(1 of 2 ranks) with twice the pages of TP rank 0,");
        wrong.forEach((sources, named) -> assertThat(Compatibility.checkCoverage(sources, target))
                .hasValueSatisfying(found -> assertThat(found.sentence()).contains(named)));
    }

    @Test
    void shouldDivideOnlyWhatEveryRankComputesWhole() {
        assertThatThrownBy(() -> latent(2, 1, 4, 3)).hasMessageContaining("pageShares is 3, expected 1 or the 2 ranks");
        assertThatThrownBy(() ->
                        new KvGroup(GroupKind.FULL_ATTENTION, "float32", 4, 4, PageLayout.NHD, 2, Shapes.PAGE_COUNT, 2))
                .hasMessageContaining("pageShares is 2 in a KV group of kind \"full\" with layout NHD");
        assertThatThrownBy(() -> new KvGroup(
                        new GroupKind.SlidingWindow(8), "float32", 4, 4, PageLayout.LATENT, 1, Shapes.PAGE_COUNT, 2))
                .hasMessageContaining("other pages are not divided among ranks");
    }
}
