package io.kvmessenger.transfer.tcp;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Imm;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Random;
import org.junit.jupiter.api.Test;

final class TcpFrameTest {
    private static final int ROUNDS = 20_000;
    private static final long HEAVIEST = (long) TcpFrame.PAGES_MAX * Imm.WEIGHT_MAX;

    @Test
    void shouldReadBackWhatWasWritten() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment frame = arena.allocate(TcpFrame.LENGTH_MAX_BYTES);
            TcpFrame.encode(frame, TcpFrame.PAGES_MAX, 7, Imm.of(3, 200), 4095, 65536);
            for (int i = 0; i < TcpFrame.PAGES_MAX; i++) {
                TcpFrame.setTargetOffset(frame, i, (long) i << 33);
            }
            assertThat(TcpFrame.fault(frame)).isNull();
            assertThat(TcpFrame.pageCount(frame)).isEqualTo(TcpFrame.PAGES_MAX);
            assertThat(TcpFrame.lengthBytes(TcpFrame.PAGES_MAX)).isEqualTo(TcpFrame.LENGTH_MAX_BYTES);
            assertThat(TcpFrame.regionId(frame)).isEqualTo(7);
            assertThat(TcpFrame.window(frame)).isEqualTo(Imm.of(3, 200));
            assertThat(TcpFrame.weight(frame)).isEqualTo(4095);
            assertThat(TcpFrame.pageBytes(frame)).isEqualTo(65536);
            assertThat(TcpFrame.targetOffset(frame, 255)).isEqualTo(255L << 33);
        }
    }

    @Test
    void shouldLetNoDamagedHeaderPassWithImpossibleLengths() {
        long seed = Long.getLong("kvmessenger.test.seed", System.nanoTime());
        System.out.println("seed " + seed + ", the same again by -Dkvmessenger.test.seed=" + seed);
        Random random = new Random(seed);
        byte[] bytes = new byte[TcpFrame.HEADER_BYTES];
        MemorySegment frame = MemorySegment.ofArray(bytes);
        int passed = 0;
        for (int round = 0; round < ROUNDS; round++) {
            TcpFrame.encode(
                    frame, random.nextInt(257), 1, Imm.of(1, 1), 1 + random.nextInt(4095), random.nextInt(1 << 20));
            for (int hits = random.nextInt(4); hits > 0; hits--) {
                bytes[random.nextInt(bytes.length)] = (byte) random.nextInt();
            }
            if (TcpFrame.fault(frame) == null) {
                passed++;
                assertThat(TcpFrame.lengthBytes(TcpFrame.pageCount(frame)))
                        .isBetween(TcpFrame.HEADER_BYTES, TcpFrame.LENGTH_MAX_BYTES);
                assertThat(TcpFrame.pageCount(frame) * TcpFrame.pageBytes(frame))
                        .isNotNegative();
                assertThat(TcpFrame.weight(frame)).isNotNegative();
            }
        }
        assertThat(passed).as("undamaged frames pass").isPositive();
    }

    @Test
    void shouldTakeTheHeaviestFrame() {
        MemorySegment frame = MemorySegment.ofArray(new byte[TcpFrame.HEADER_BYTES]);
        TcpFrame.encode(frame, TcpFrame.PAGES_MAX, 1, 0, HEAVIEST, 1);
        assertThat(TcpFrame.fault(frame)).isNull();
    }

    @Test
    void shouldNameWhatIsWrong() {
        MemorySegment frame = MemorySegment.ofArray(new byte[TcpFrame.HEADER_BYTES]);
        assertThat(TcpFrame.fault(frame)).contains("mark");
        TcpFrame.encode(frame, 257, 1, 0, 1, 1);
        assertThat(TcpFrame.fault(frame)).contains("257 pages");
        TcpFrame.encode(frame, 1, 1, 0, 1, -1);
        assertThat(TcpFrame.fault(frame)).contains("-1 bytes");
        TcpFrame.encode(frame, 1, 1, 0, HEAVIEST + 1, 1);
        assertThat(TcpFrame.fault(frame)).contains("weight " + (HEAVIEST + 1));
        TcpFrame.encode(frame, 1, 1, 0, 0, 1);
        assertThat(TcpFrame.fault(frame)).as("it would land uncounted").contains("weight 0");
    }
}
