package io.kvmessenger.benchmarks;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.Test;

class PagePoolTest {
    private static final int PAGE_BYTES = 64;
    private static final int[] SOURCE = {0, 2};
    private static final int[] TARGET = {3, 1};

    private final PagePool source = PagePool.allocate(4 * PAGE_BYTES, PAGE_BYTES);
    private final PagePool target = PagePool.allocate(4 * PAGE_BYTES, PAGE_BYTES);

    private void transfer() {
        for (int i = 0; i < SOURCE.length; i++) {
            MemorySegment.copy(
                    source.memory(),
                    (long) SOURCE[i] * PAGE_BYTES,
                    target.memory(),
                    (long) TARGET[i] * PAGE_BYTES,
                    PAGE_BYTES);
        }
    }

    @Test
    void shouldFindNothingWrongWithPagesThatArrived() {
        source.fill(1, SOURCE);
        transfer();
        assertThat(target.countBadBytes(1, SOURCE, TARGET)).isZero();
    }

    @Test
    void shouldFindOneWrongByte() {
        source.fill(1, SOURCE);
        transfer();
        long at = 3L * PAGE_BYTES + 17;
        target.memory().set(ValueLayout.JAVA_BYTE, at, (byte) (target.memory().get(ValueLayout.JAVA_BYTE, at) ^ 1));
        assertThat(target.countBadBytes(1, SOURCE, TARGET)).isEqualTo(Long.BYTES);
    }

    @Test
    void shouldDistinguishPagesOfAnEarlierRoundAndSwappedPages() {
        source.fill(1, SOURCE);
        transfer();
        assertThat(target.countBadBytes(2, SOURCE, TARGET)).isEqualTo(2 * PAGE_BYTES);
        assertThat(target.countBadBytes(1, SOURCE, new int[] {1, 3})).isEqualTo(2 * PAGE_BYTES);
    }
}
