package io.kvmessenger.kvlayout;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Two layers travel as one write only if the second begins, in every page of both sides, where the first ends: joined
 * wrongly, a decoder counts pages of which one layer is another's.
 */
final class ContinuationTest {
    private static final int PAGE_BYTES = 16;
    private static final long STRIDE_BYTES = 64;
    private static final LayerGeometry FIRST = new LayerGeometry("first", 0, 0, 0, STRIDE_BYTES, PAGE_BYTES);
    private static final LayerGeometry SECOND = at(0, PAGE_BYTES, STRIDE_BYTES);

    /** The second layer on one side only. */
    private record Apart(String what, LayerGeometry second) {}

    private static LayerGeometry at(int memoryIndex, long offsetBytes, long strideBytes) {
        return new LayerGeometry("second", 0, memoryIndex, offsetBytes, strideBytes, PAGE_BYTES);
    }

    static Stream<Apart> apart() {
        return Stream.of(
                new Apart("in another memory", at(1, PAGE_BYTES, STRIDE_BYTES)),
                new Apart("with other strides", at(0, PAGE_BYTES, STRIDE_BYTES + 1)),
                new Apart("one byte later", at(0, PAGE_BYTES + 1, STRIDE_BYTES)),
                new Apart("one byte earlier", at(0, PAGE_BYTES - 1, STRIDE_BYTES)),
                new Apart("at the same place", at(0, 0, STRIDE_BYTES)),
                new Apart("in the next page", at(0, PAGE_BYTES + STRIDE_BYTES, STRIDE_BYTES)));
    }

    private static KvGeometry geometry(LayerGeometry second) {
        KvGroup group = new KvGroup(GroupKind.FULL_ATTENTION, "int8", 1, 4, PageLayout.HND, 2, 8);
        RankGeometry rank = new RankGeometry(0, 0, List.of(FIRST, second));
        return new KvGeometry("m", Sharding.ALONE, List.of(group), List.of(rank));
    }

    private static int joined(LayerGeometry onSource, LayerGeometry onTarget) {
        TransferPlan plan = LayoutPlanner.plan(geometry(onSource), geometry(onTarget));
        assertThat(plan.pieceCount()).isEqualTo(2);
        assertThat(plan.continuation(1)).isEqualTo(TransferPlan.NONE);
        return plan.continuation(0);
    }

    @Test
    void shouldJoinLayersThatAreSideBySideOnBothSides() {
        assertThat(joined(SECOND, SECOND)).isEqualTo(1);
    }

    @ParameterizedTest
    @MethodSource("apart")
    void shouldNotJoinLayersThatAreApartOnTheSource(Apart apart) {
        assertThat(joined(apart.second, SECOND)).as(apart.what).isEqualTo(TransferPlan.NONE);
    }

    @ParameterizedTest
    @MethodSource("apart")
    void shouldNotJoinLayersThatAreApartOnTheTarget(Apart apart) {
        assertThat(joined(SECOND, apart.second)).as(apart.what).isEqualTo(TransferPlan.NONE);
    }

    @ParameterizedTest
    @MethodSource("apart")
    void shouldNotJoinLayersThatAreApartAlikeOnBothSides(Apart apart) {
        assertThat(joined(apart.second, apart.second)).as(apart.what).isEqualTo(TransferPlan.NONE);
    }
}
