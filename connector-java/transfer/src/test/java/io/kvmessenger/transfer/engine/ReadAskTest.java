package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.ReadKey;
import io.kvmessenger.transfer.TransferRequest.PageList;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** The records by which peers read: what an honest one says arrives, and what a hostile one says harms nothing. */
final class ReadAskTest {
    private static final int ROUNDS = 200_000;

    private final long seed = Long.getLong("kvmessenger.test.seed", System.nanoTime());
    private final Random random = new Random(seed);
    private final MemorySegment out = MemorySegment.ofArray(new byte[ReadAsk.LENGTH_MAX_BYTES]);

    private PageList list(int count) {
        int partsPerPage = random.nextInt(4) == 0 ? 1 + random.nextInt(5) : 1;
        int from = random.nextInt(20);
        int[] indices =
                random.ints((from + count) / partsPerPage + 1, 0, 1 << 20).toArray();
        return new PageList(indices, from, count, random.nextInt(), random.nextLong(), partsPerPage, random.nextInt());
    }

    private ReadAsk ask() {
        int count = 1 + random.nextInt(ReadAsk.PAGES_MAX);
        return new ReadAsk(
                Imm.of(1 + random.nextInt(Imm.SLOT_COUNT_MAX - 1), random.nextInt(Imm.GENERATION_COUNT)),
                random.nextInt(ReadAsk.HEARS_TOO_LONG),
                random.nextBoolean(),
                new ReadKey(random.nextLong(), random.nextLong()),
                random.nextInt(),
                list(count),
                random.nextInt(),
                list(count),
                1 + random.nextInt(Integer.MAX_VALUE));
    }

    private static void assertSame(PageList seen, PageList given) {
        assertThat(seen.count()).isEqualTo(given.count());
        for (int i = 0; i < given.count(); i++) {
            assertThat(seen.offsetOf(i)).isEqualTo(given.offsetOf(i));
        }
    }

    @Test
    void shouldSayWhatWasAsked() {
        for (int round = 0; round < 1000; round++) {
            ReadAsk given = ask();
            ReadAsk seen = ReadAsk.parse(given.encode(out));
            assertThat(seen).as("seed %d round %d", seed, round).isNotNull();
            assertSame(seen.sourcePages(), given.sourcePages());
            assertSame(seen.targetPages(), given.targetPages());
            assertThat(seen.from()).isEqualTo(given.from());
            assertThat(new int[] {seen.imm(), seen.part(), seen.sourceRegionId(), seen.targetRegionId()})
                    .containsExactly(given.imm(), given.part(), given.sourceRegionId(), given.targetRegionId());
            assertThat(seen.pageBytes()).isEqualTo(given.pageBytes());
            assertThat(seen.hearsTooLong()).isEqualTo(given.hearsTooLong());
        }
    }

    /** An exception here would end the engine of whatever peer it was sent to. */
    @Test
    void shouldTakeAnyBytesWithoutAnError() {
        int taken = 0;
        for (int round = 0; round < ROUNDS; round++) {
            MemorySegment record = damaged();
            ReadAsk seen = ReadAsk.parse(record);
            if (seen != null) {
                taken++;
                assertHarmless(seen);
            }
        }
        assertThat(taken).as("seed %d: some were taken", seed).isPositive();
    }

    private MemorySegment damaged() {
        if (random.nextInt(4) == 0) {
            byte[] garbage = new byte[random.nextInt(ReadAsk.LENGTH_MAX_BYTES)];
            random.nextBytes(garbage);
            return MemorySegment.ofArray(garbage);
        }
        byte[] bytes = ask().encode(out).toArray(ValueLayout.JAVA_BYTE);
        for (int i = random.nextInt(4); i >= 0; i--) {
            // Rather in the part before the indices, and rather a value at the edge.
            int at = random.nextInt(random.nextBoolean() ? 104 : bytes.length);
            byte[] values = {0, 1, -1, Byte.MIN_VALUE, Byte.MAX_VALUE, (byte) random.nextInt()};
            bytes[at] = values[random.nextInt(values.length)];
        }
        return MemorySegment.ofArray(bytes).asSlice(0, bytes.length - (random.nextInt(8) == 0 ? 4 : 0));
    }

    private static void assertHarmless(ReadAsk seen) {
        PageList from = seen.sourcePages();
        PageList to = seen.targetPages();
        assertThat(from.count()).isBetween(1, ReadAsk.PAGES_MAX).isEqualTo(to.count());
        for (int i = 0; i < from.count(); ) {
            int run = PageList.runLength(from, to, seen.pageBytes(), i, from.count() - i);
            for (int page = i; page < i + run; page++) {
                // What is copied as one is what was checked page by page.
                assertThat(from.offsetOf(page)).isEqualTo(from.offsetOf(i) + (long) (page - i) * seen.pageBytes());
                assertThat(to.offsetOf(page)).isEqualTo(to.offsetOf(i) + (long) (page - i) * seen.pageBytes());
            }
            i += run;
        }
    }

    @Test
    void shouldSayWhatWasAnswered() {
        for (int outcome : new int[] {ReadAnswer.SENT, ReadAnswer.NO_WINDOW, ReadAnswer.OUTSIDE, ReadAnswer.TOO_LONG}) {
            ReadAnswer given = new ReadAnswer(Imm.of(3, 4), 5, outcome);
            assertThat(ReadAnswer.parse(given.encode())).isEqualTo(given);
        }
        assertThat(ReadAnswer.parse(new ReadAnswer(1, -1, ReadAnswer.SENT).encode()))
                .isNull();
        assertThat(ReadAnswer.parse(new ReadAnswer(1, 1, ReadAnswer.TOO_LONG + 1).encode()))
                .isNull();
        assertThat(ReadAnswer.parse(new ReadAnswer(1, 1, -1).encode())).isNull();
        assertThat(ReadAnswer.parse(MemorySegment.NULL)).isNull();
    }

    /** Its owner returns the part as it was sent, and must not be misunderstood. */
    @Test
    void shouldFindThePartInTheAnswerOfAnOwnerOfThePreviousVersion() {
        ReadAnswer echo = new ReadAnswer(Imm.of(3, 4), 5 | ReadAsk.HEARS_TOO_LONG, ReadAnswer.SENT);
        assertThat(ReadAnswer.parse(echo.encode())).isEqualTo(new ReadAnswer(Imm.of(3, 4), 5, ReadAnswer.SENT));
    }
}
