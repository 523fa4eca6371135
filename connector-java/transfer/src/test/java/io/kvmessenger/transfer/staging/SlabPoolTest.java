package io.kvmessenger.transfer.staging;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.device.CopyStream;
import io.kvmessenger.transfer.device.DeviceAccess;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

final class SlabPoolTest {
    private static final int SLABS = 4;
    private static final int LONG_SLABS = 2;
    private static final int LONG = 2;

    private final List<Long> pinned = new ArrayList<>();
    private final SlabPool pool = new SlabPool(new StagingLimits(64, SLABS, LONG_SLABS), new Pins());
    private final SlabPool.Holder first = new SlabPool.Holder();
    private final SlabPool.Holder second = new SlabPool.Holder();
    private final SlabPool.Holder third = new SlabPool.Holder();

    @Test
    void shouldPinItsMemoryOnceWhenTheFirstSlabIsTaken() {
        assertThat(pinned).isEmpty();
        int a = pool.take(first, 1);
        int b = pool.take(first, 1);
        assertThat(pinned).containsExactly((SLABS + LONG_SLABS) * 64L);
        assertThat(Math.abs(pool.address(a) - pool.address(b))).isGreaterThanOrEqualTo(64);
    }

    @Test
    void shouldGiveAllToOneAndAnEqualShareToTwo() {
        List<Integer> held = new ArrayList<>();
        for (int i = 0; i < SLABS; i++) {
            held.add(pool.take(first, 1));
        }
        assertThat(held).doesNotHaveDuplicates().doesNotContain(SlabPool.NONE);
        assertThat(pool.take(second, 1)).isEqualTo(SlabPool.NONE);
        pool.give(first, held.removeFirst());
        assertThat(pool.take(first, 1)).as("it holds more than its share").isEqualTo(SlabPool.NONE);
        assertThat(pool.take(second, 1)).isNotEqualTo(SlabPool.NONE);
        pool.give(first, held.removeFirst());
        pool.give(first, held.removeFirst());
        assertThat(pool.take(first, 1)).isNotEqualTo(SlabPool.NONE);
        assertThat(pool.take(first, 1)).isEqualTo(SlabPool.NONE);
        assertThat(pool.take(second, 1)).isNotEqualTo(SlabPool.NONE);
    }

    @Test
    void shouldServeTheOneThatHasWaitedLongest() {
        List<Integer> held = new ArrayList<>();
        for (int i = 0; i < SLABS; i++) {
            held.add(pool.take(first, 1));
        }
        assertThat(pool.take(second, 1)).isEqualTo(SlabPool.NONE);
        assertThat(pool.take(third, 1)).isEqualTo(SlabPool.NONE);
        pool.give(first, held.removeFirst());
        assertThat(pool.take(third, 1)).as("the one that is free is promised").isEqualTo(SlabPool.NONE);
        assertThat(pool.take(second, 1)).isNotEqualTo(SlabPool.NONE);
        pool.give(first, held.removeFirst());
        assertThat(pool.take(third, 1)).isNotEqualTo(SlabPool.NONE);
    }

    @Test
    void shouldKeepNoPlaceForOneThatWaitsNoMore() {
        List<Integer> held = new ArrayList<>();
        for (int i = 0; i < SLABS; i++) {
            held.add(pool.take(first, 1));
        }
        assertThat(pool.take(second, 1)).isEqualTo(SlabPool.NONE);
        assertThat(pool.take(third, 1)).isEqualTo(SlabPool.NONE);
        pool.rest(second);
        pool.give(first, held.removeFirst());
        assertThat(pool.take(third, 1)).isNotEqualTo(SlabPool.NONE);
    }

    @Test
    void shouldLendTheLongPlaceToOneAtATime() {
        int place = pool.take(first, LONG);
        assertThat(pool.take(second, LONG)).isEqualTo(SlabPool.NONE);
        assertThat(pool.take(third, 1)).as("slabs are apart from it").isNotEqualTo(SlabPool.NONE);
        pool.give(first, place);
        assertThat(pool.take(first, LONG)).as("another waits").isEqualTo(SlabPool.NONE);
        assertThat(pool.take(second, LONG)).isEqualTo(place);
    }

    /** Has host memory, and no device. */
    private final class Pins implements DeviceAccess {
        @Override
        public String refusal(int ordinal) {
            return null;
        }

        @Override
        public CopyStream openStream(int ordinal) {
            throw new AssertionError("no copy is made");
        }

        @Override
        public MemorySegment pin(long lengthBytes) {
            pinned.add(lengthBytes);
            return Arena.ofAuto().allocate(lengthBytes);
        }

        @Override
        public void close() {}
    }
}
