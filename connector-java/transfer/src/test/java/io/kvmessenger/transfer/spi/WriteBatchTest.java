package io.kvmessenger.transfer.spi;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.lang.foreign.MemorySegment;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

final class WriteBatchTest {
    private static final int PAGE_BYTES = 64;
    private static final int PAGE_COUNT = 300;
    private static final RegionDescriptor REGION = new RegionDescriptor(1, PAGE_BYTES, RegionDescriptor.VERSION, false);

    private record Registered(RegionDescriptor descriptor, Memory memory) implements Region {
        @Override
        public void deregister() {}
    }

    private static WriteBatch batch(int weight) {
        Registered memory = new Registered(REGION, Memory.host(MemorySegment.ofArray(new byte[PAGE_BYTES])));
        PageList pages = new PageList(new int[PAGE_COUNT], 0, PAGE_COUNT, PAGE_BYTES, 0);
        WriteBatch batch = new WriteBatch();
        batch.set(
                0,
                new PagedWrites(memory, pages, REGION, pages, PAGE_BYTES, () -> Imm.of(1, 0), weight),
                0,
                PAGE_COUNT);
        return batch;
    }

    @Test
    void shouldWeighNoMoreThanOneImmediateCanSay() {
        for (int weight : new int[] {1, 13, 14, 61, 2048, Imm.WEIGHT_MAX}) {
            WriteBatch batch = batch(weight);
            int most = Math.min(PAGE_COUNT, Imm.WEIGHT_MAX / weight);
            assertThat(batch.limit(Integer.MAX_VALUE, Long.MAX_VALUE, Imm.WEIGHT_MAX))
                    .as("weight " + weight)
                    .isEqualTo(most);
            assertThat(batch.weight()).isEqualTo((long) most * weight);
        }
    }

    @Test
    void shouldHoldItsPagesAndBytesToTheirLimits() {
        assertThat(batch(1).limit(7, Long.MAX_VALUE, Long.MAX_VALUE)).isEqualTo(7);
        assertThat(batch(1).limit(Integer.MAX_VALUE, 5 * PAGE_BYTES - 1, Long.MAX_VALUE))
                .isEqualTo(4);
        assertThat(batch(1).limit(Integer.MAX_VALUE, PAGE_BYTES - 1, Long.MAX_VALUE))
                .as("one page is always taken")
                .isEqualTo(1);
        assertThat(batch(1).limit(Integer.MAX_VALUE, Long.MAX_VALUE, Long.MAX_VALUE))
                .isEqualTo(PAGE_COUNT);
    }

    @Test
    void shouldCountBeyond32Bits() {
        int pageBytes = 1 << 20;
        int count = 6000;
        Registered memory = new Registered(REGION, Memory.host(MemorySegment.ofArray(new byte[PAGE_BYTES])));
        PageList pages = new PageList(IntStream.range(0, count).toArray(), 0, count, pageBytes, 0);
        WriteBatch batch = new WriteBatch();
        batch.set(0, new PagedWrites(memory, pages, REGION, pages, pageBytes, () -> Imm.of(1, 0), 1), 0, count);
        assertThat(batch.payloadBytes()).isEqualTo((long) count * pageBytes);
        assertThat(batch.targetOffsetBytes(count - 1)).isEqualTo((count - 1L) * pageBytes);
        assertThat(batch.limit(Integer.MAX_VALUE, 5L << 30, Long.MAX_VALUE)).isEqualTo(5 << 10);
        assertThat(batch.payloadBytes()).isEqualTo(5L << 30);
    }
}
