package io.kvmessenger.transfer;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.Random;
import org.junit.jupiter.api.Test;

final class WindowRangesTest {
    @Test
    void shouldContainWhatLiesInsideAndNothingElse() {
        long seed = Long.getLong("kvmessenger.test.seed", System.nanoTime());
        System.out.println("seed " + seed + ", the same again by -Dkvmessenger.test.seed=" + seed);
        Random random = new Random(seed);
        for (int round = 0; round < 200; round++) {
            boolean[] inside = new boolean[200];
            WindowRanges ranges = draw(random, inside);
            for (int from = 0; from < inside.length; from++) {
                boolean all = true;
                for (int to = from + 1; to <= inside.length; to++) {
                    all &= inside[to - 1];
                    assertThat(ranges.contains(from, to - from)).isEqualTo(all);
                }
            }
        }
    }

    /** Ranges of equal length at random places, and which bytes they cover. */
    private static WindowRanges draw(Random random, boolean[] inside) {
        int length = 1 + random.nextInt(10);
        int places = inside.length / length;
        long[] offsets = random.ints(0, places)
                .distinct()
                .limit(1 + random.nextInt(places))
                .mapToLong(place -> (long) place * length)
                .toArray();
        for (long offset : offsets) {
            java.util.Arrays.fill(inside, (int) offset, (int) offset + length, true);
        }
        return WindowRanges.ofEqual(offsets, length);
    }

    /**
     * Layers one after the other, side by side in each page, both with and without gaps, and mixed up. Only of what
     * crosses from one layer's pages into another's, which no write does, they may think differently.
     */
    @Test
    void shouldContainTheSameWhetherGivenByPagesOrByRanges() {
        long seed = Long.getLong("kvmessenger.test.seed", System.nanoTime());
        System.out.println("seed " + seed + ", the same again by -Dkvmessenger.test.seed=" + seed);
        Random random = new Random(seed);
        for (int round = 0; round < 200; round++) {
            int layerCount = 1 + random.nextInt(4);
            int pageCount = 1 + random.nextInt(6);
            boolean sideBySide = random.nextBoolean();
            boolean mixedUp = random.nextInt(4) == 0;
            long[] offsets = new long[layerCount];
            long[] strides = new long[layerCount];
            long[] pageBytes = random.longs(layerCount, 1, 6).toArray();
            long at = random.nextInt(3);
            long rowBytes = java.util.Arrays.stream(pageBytes).sum() + 2L * layerCount;
            for (int layer = 0; layer < layerCount; layer++) {
                offsets[layer] = at;
                strides[layer] = sideBySide ? rowBytes : pageBytes[layer] + random.nextInt(2);
                at += sideBySide ? pageBytes[layer] + random.nextInt(2) : strides[layer] * pageCount;
            }
            if (mixedUp) {
                strides[0] = rowBytes * pageCount;
            }
            int[] pages = random.ints(0, pageCount)
                    .distinct()
                    .limit(1 + random.nextInt(pageCount))
                    .toArray();
            checkPages(pages, offsets, strides, pageBytes);
        }
    }

    private static void checkPages(int[] pages, long[] offsets, long[] strides, long[] pageBytes) {
        long[] starts = new long[pages.length * offsets.length];
        long[] lengths = new long[starts.length];
        for (int i = 0; i < starts.length; i++) {
            int layer = i / pages.length;
            starts[i] = offsets[layer] + pages[i % pages.length] * strides[layer];
            lengths[i] = pageBytes[layer];
        }
        WindowRanges byRange;
        try {
            byRange = WindowRanges.of(starts, lengths);
        } catch (IllegalArgumentException overlap) {
            assertThatThrownBy(() -> WindowRanges.ofPages(pages, offsets, strides, pageBytes))
                    .isInstanceOf(IllegalArgumentException.class);
            return;
        }
        WindowRanges byPage = WindowRanges.ofPages(pages, offsets, strides, pageBytes);
        assertThat(byPage.endBytes()).isEqualTo(byRange.endBytes());
        for (long from = -1; from <= byRange.endBytes(); from++) {
            for (int layer = 0; layer < offsets.length; layer++) {
                for (long length = 0; length <= pageBytes[layer]; length++) {
                    boolean inOnePage = inOnePage(starts, lengths, from, length);
                    boolean inRanges = byRange.contains(from, length);
                    assertThat(byPage.contains(from, length))
                            .as("%d bytes at %d", length, from)
                            .isIn(inOnePage, inRanges);
                }
            }
        }
    }

    private static boolean inOnePage(long[] starts, long[] lengths, long from, long length) {
        for (int i = 0; i < starts.length; i++) {
            if (from >= starts[i] && from < starts[i] + lengths[i] && from + length <= starts[i] + lengths[i]) {
                return true;
            }
        }
        return false;
    }

    @Test
    void shouldContainRunsOfPagesThatTouch() {
        WindowRanges apart = WindowRanges.ofPages(
                new int[] {3, 1, 2, 6}, new long[] {0, 80}, new long[] {10, 10}, new long[] {10, 10});
        assertThat(apart.contains(10, 30)).isTrue();
        assertThat(apart.contains(15, 25)).isTrue();
        assertThat(apart.contains(10, 31)).isFalse();
        assertThat(apart.contains(90, 30)).isTrue();
        assertThat(apart.contains(60, 10)).isTrue();
        assertThat(apart.contains(60, 11)).isFalse();
        WindowRanges together =
                WindowRanges.ofPages(new int[] {1, 2}, new long[] {0, 4}, new long[] {10, 10}, new long[] {4, 6});
        assertThat(together.contains(10, 20)).isTrue();
        assertThat(together.contains(12, 4)).isTrue();
        assertThat(together.contains(12, 19)).isFalse();
        WindowRanges gap =
                WindowRanges.ofPages(new int[] {1, 2}, new long[] {0, 5}, new long[] {10, 10}, new long[] {4, 5});
        assertThat(gap.contains(10, 4)).isTrue();
        assertThat(gap.contains(10, 5)).isFalse();
        assertThat(gap.contains(15, 5)).isTrue();
    }

    /** However layers lie that touch in their first page, a write over several of them is inside. */
    @Test
    void shouldContainJoinedLayersOfTheFirstPageAlone() {
        int[] firstPage = {0};
        WindowRanges sideBySide =
                WindowRanges.ofPages(firstPage, new long[] {0, 4}, new long[] {10, 10}, new long[] {4, 6});
        assertThat(sideBySide.contains(0, 10)).isTrue();
        assertThat(sideBySide.contains(0, 11)).isFalse();
        WindowRanges oneAfterTheOther =
                WindowRanges.ofPages(firstPage, new long[] {0, 4}, new long[] {4, 6}, new long[] {4, 6});
        assertThat(oneAfterTheOther.contains(0, 10)).isTrue();
        assertThat(oneAfterTheOther.contains(0, 11)).isFalse();
    }

    @Test
    void shouldRefusePagesNamedTwiceAndLayersThatOverlap() {
        assertThatThrownBy(() -> WindowRanges.ofPages(new int[] {4, 4}, new long[] {0}, new long[] {8}, new long[] {8}))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessage("page 4 is named twice");
        assertThatThrownBy(() ->
                        WindowRanges.ofPages(new int[] {0, 1}, new long[] {0, 4}, new long[] {8, 8}, new long[] {8, 8}))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessageContaining("overlap");
        assertThatThrownBy(() -> WindowRanges.ofPages(
                        new int[] {9}, new long[] {0}, new long[] {Long.MAX_VALUE / 2}, new long[] {8}))
                .isInstanceOf(IllegalArgumentException.class);
    }

    @Test
    void shouldNotBeFooledByOverflow() {
        WindowRanges ranges = WindowRanges.ofEqual(new long[] {100}, 100);
        assertThat(ranges.contains(150, Long.MAX_VALUE)).isFalse();
        assertThat(ranges.contains(Long.MAX_VALUE, 100)).isFalse();
        assertThat(ranges.contains(-1, 1)).isFalse();
        assertThat(ranges.contains(150, -1)).isFalse();
    }

    @Test
    void shouldRefuseRangesThatOverlap() {
        assertThatThrownBy(() -> WindowRanges.ofEqual(new long[] {0, 99}, 100))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessageContaining("overlap at offset 99");
        assertThatThrownBy(() -> WindowRanges.ofEqual(new long[] {Long.MAX_VALUE}, 100))
                .isInstanceOf(IllegalArgumentException.class);
    }
}
