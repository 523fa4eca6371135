package io.kvmessenger.messenger.pages;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.kvlayout.GroupKind;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.util.List;
import org.junit.jupiter.api.Test;

/** The pages of a request in a cache of two groups: ten pages of four tokens, and twenty of two. */
class GroupedPagesTest {
    private static final int PAGE_BYTES = 8;
    private static final List<List<RegionDescriptor>> REGIONS =
            List.of(List.of(new RegionDescriptor(3, 1024, RegionDescriptor.VERSION, false)));

    private static KvGroup group(int pageTokens, int pageCount) {
        return new KvGroup(GroupKind.FULL_ATTENTION, "int8", 1, pageTokens, PageLayout.HND, 1, pageCount);
    }

    private static KvGeometry geometry(long secondOffset, long stride) {
        return new KvGeometry(
                "m",
                Sharding.ALONE,
                List.of(group(4, 10), group(2, 20)),
                List.of(new RankGeometry(
                        0,
                        0,
                        List.of(
                                new LayerGeometry("a", 0, 0, 0, stride, PAGE_BYTES),
                                new LayerGeometry("b", 1, 0, secondOffset, stride, PAGE_BYTES)))));
    }

    private static WindowRanges granted(KvGeometry geometry, int[] first, int[] second) {
        WindowArea area = GrantedRanges.of(geometry, REGIONS, List.of(first, second), List.of());
        return area.parts().getFirst().ranges();
    }

    @Test
    void shouldLetWritesLandInEachGroupsOwnPages() {
        for (long stride : new long[] {PAGE_BYTES, 2 * PAGE_BYTES}) {
            long second = stride == PAGE_BYTES ? 10 * PAGE_BYTES : PAGE_BYTES; // behind, or in between
            WindowRanges ranges = granted(geometry(second, stride), new int[] {7, 2}, new int[] {1, 5});
            for (int page = 0; page < 10; page++) {
                assertThat(ranges.contains(page * stride, PAGE_BYTES)).isEqualTo(page == 7 || page == 2);
                assertThat(ranges.contains(second + page * stride, PAGE_BYTES)).isEqualTo(page == 1 || page == 5);
            }
            assertThat(ranges.contains(second + 5 * stride, PAGE_BYTES + 1)).isFalse();
        }
    }

    /** Engines may have one pool for all groups, in which a page belongs to one of them at a time. */
    @Test
    void shouldRefuseAPageOfOnePoolThatTwoGroupsName() {
        KvGeometry pooled = geometry(0, PAGE_BYTES);
        assertThat(granted(pooled, new int[] {7}, new int[] {1}).contains(PAGE_BYTES, PAGE_BYTES))
                .isTrue();
        assertThatThrownBy(() -> granted(pooled, new int[] {7, 1}, new int[] {1}))
                .hasMessage("ranges overlap at offset 8");
    }

    @Test
    void shouldRefuseAPageThatItsGroupHasNot() {
        KvGeometry geometry = geometry(10 * PAGE_BYTES, PAGE_BYTES);
        assertThat(PageLists.outside(geometry, List.of(new int[] {9}, new int[] {19})))
                .isEmpty();
        assertThat(PageLists.outside(geometry, List.of(new int[] {9}, new int[] {20})))
                .isEqualTo("page 20 of 20 in KV group 1");
        assertThatThrownBy(() -> granted(geometry, new int[] {10}, new int[] {1}))
                .hasMessage("page 10 of 10 in KV group 0");
    }

    @Test
    void shouldCountPagesInEachGroup() {
        KvGeometry geometry = geometry(10 * PAGE_BYTES, PAGE_BYTES);
        assertThat(PageLists.misfit(geometry, List.of(new int[2], new int[3]), 4, 10, false))
                .isEmpty();
        assertThat(PageLists.misfit(geometry, List.of(new int[2], new int[2]), 4, 10, false))
                .isEqualTo("2 pages for tokens 4 to 10, which need 3 in KV group 1");
        assertThat(PageLists.misfit(geometry, List.of(new int[3], new int[4]), 2, 10, false))
                .startsWith("3 pages for tokens 2 to 10");
        assertThat(PageLists.misfit(geometry, List.of(new int[2]), 4, 10, false))
                .isEqualTo("1 page lists, expected one for each of 2 KV groups");
        assertThat(PageLists.misfit(geometry, List.of(new int[0], new int[0]), 8, 8, false))
                .isNotEmpty();
        assertThat(PageLists.misfit(geometry, List.of(new int[0], new int[0]), 8, 8, true))
                .isEmpty();
    }
}
