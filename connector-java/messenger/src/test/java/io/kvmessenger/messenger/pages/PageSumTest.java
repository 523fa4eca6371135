package io.kvmessenger.messenger.pages;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.RecordingTransferEngine;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferRequest.PageList;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.SplittableRandom;
import java.util.zip.CRC32C;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class PageSumTest {
    private static final int PAGE_BYTES = 96;

    private final RecordingTransferEngine transfer = new RecordingTransferEngine();

    @Test
    void shouldSumThePagesThatCountInTheirOrder() {
        byte[] bytes = new byte[40 * PAGE_BYTES];
        new SplittableRandom(1).nextBytes(bytes);
        int[] pages = {7, 3, 30, 4, 12, 0, 39};
        CRC32C expected = new CRC32C();
        for (int i : new int[] {1, 4}) {
            expected.update(bytes, pages[i] * PAGE_BYTES, PAGE_BYTES);
        }
        PageSum sum = sum(MemorySegment.ofArray(bytes), pages, 1, 3);
        sum.advance(Long.MAX_VALUE);
        assertThat(sum.done()).isTrue();
        assertThat(sum.value()).isEqualTo((int) expected.getValue());
        assertThat(sum.pageCount()).isEqualTo(2);
    }

    @Test
    void shouldGiveTheSameInOneStepAndInMany() {
        byte[] bytes = new byte[40 * PAGE_BYTES];
        new SplittableRandom(2).nextBytes(bytes);
        PageSum once = sum(MemorySegment.ofArray(bytes), new int[] {1, 5, 9}, 0, 1);
        assertThat(once.advance(Long.MAX_VALUE)).isEqualTo(3 * PAGE_BYTES);
        PageSum often = sum(MemorySegment.ofArray(bytes), new int[] {1, 5, 9}, 0, 1);
        int steps = 0;
        while (!often.done()) {
            assertThat(often.advance(1)).isEqualTo(PAGE_BYTES);
            steps++;
        }
        assertThat(steps).isEqualTo(3);
        assertThat(often.value()).isEqualTo(once.value());
    }

    @Test
    void shouldBeDoneAtOnceWhenNoPageCounts() {
        PageSum sum = sum(MemorySegment.ofArray(new byte[PAGE_BYTES]), new int[] {0}, 15, 16);
        assertThat(sum.done()).isTrue();
        assertThat(sum.pageCount()).isZero();
    }

    @Test
    void shouldReadPagesBeyondWhatOneBufferHolds(@TempDir Path folder) throws IOException {
        try (Arena arena = Arena.ofConfined();
                FileChannel sparse = FileChannel.open(
                        folder.resolve("kv"),
                        StandardOpenOption.CREATE,
                        StandardOpenOption.READ,
                        StandardOpenOption.WRITE)) {
            long stride = 700L << 20;
            MemorySegment memory = sparse.map(FileChannel.MapMode.READ_WRITE, 0, 4 * stride, arena);
            CRC32C expected = new CRC32C();
            byte[] page = new byte[PAGE_BYTES];
            for (int i : new int[] {3, 0, 2}) {
                new SplittableRandom(i).nextBytes(page);
                MemorySegment.copy(page, 0, memory, ValueLayout.JAVA_BYTE, i * stride, PAGE_BYTES);
                expected.update(page);
            }
            Region region = transfer.register(Memory.host(memory));
            PageSum sum = new PageSum(region, new PageList(new int[] {3, 0, 2}, 0, 3, stride, 0), PAGE_BYTES, 0, 1);
            sum.advance(Long.MAX_VALUE);
            assertThat(sum.value()).isEqualTo((int) expected.getValue());
        }
    }

    private PageSum sum(MemorySegment memory, int[] pages, int first, int interval) {
        Region region = transfer.register(Memory.host(memory));
        return new PageSum(region, new PageList(pages, 0, pages.length, PAGE_BYTES, 0), PAGE_BYTES, first, interval);
    }
}
