package io.kvmessenger.transfer;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.Random;
import org.junit.jupiter.api.Test;

final class WindowRangesTest {
    @Test
    void shouldContainWhatLiesInsideAndNothingElse() {
        long seed = System.nanoTime();
        System.out.println("seed " + seed);
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
