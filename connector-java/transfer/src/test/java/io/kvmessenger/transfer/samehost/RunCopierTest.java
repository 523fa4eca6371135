package io.kvmessenger.transfer.samehost;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.StreamingCopy;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

final class RunCopierTest {
    private static final int MEMORY_BYTES = 2 << 20;
    private static final int LANES = StreamingCopy.LANES;

    private final Arena arena = Arena.ofConfined();
    private final MemorySegment source = arena.allocate(MEMORY_BYTES, 4096);
    private final MemorySegment target = arena.allocate(MEMORY_BYTES, 4096);
    private final MemorySegment expected = arena.allocate(MEMORY_BYTES, 4096);

    /** Null, and then the same as {@link #ordinary}, where the machine has none. */
    private final RunCopier copier = new RunCopier(StreamingCopy.ofThisProcess());

    private final RunCopier ordinary = new RunCopier(null);

    RunCopierTest() {
        byte[] content = new byte[MEMORY_BYTES];
        new Random(1).nextBytes(content);
        source.copyFrom(MemorySegment.ofArray(content));
    }

    @AfterEach
    void close() {
        arena.close();
    }

    private void copy(RunCopier with, List<long[]> runs) {
        target.fill((byte) 0);
        expected.fill((byte) 0);
        for (long[] run : runs) {
            with.add(source, run[0], target, run[1], run[2]);
            MemorySegment.copy(source, run[0], expected, run[1], run[2]);
        }
        with.finish();
        assertThat(target.mismatch(expected)).isEqualTo(-1);
    }

    /** Runs one after the other in the target, each with its own gap, so that nothing may be written beside one. */
    private List<long[]> runs(Random random, int count, int lengthMax) {
        List<long[]> runs = new ArrayList<>();
        long to = random.nextInt(64);
        for (int i = 0; i < count; i++) {
            long lengthBytes = random.nextInt(lengthMax + 1);
            if (to + lengthBytes > MEMORY_BYTES) {
                break;
            }
            runs.add(new long[] {random.nextInt((int) (MEMORY_BYTES - lengthBytes + 1)), to, lengthBytes});
            to += lengthBytes + random.nextInt(70);
        }
        return runs;
    }

    @Test
    void shouldCopyRunsOfAnyLengthsAndAlignments() {
        Random random = new Random(2);
        for (int i = 0; i < 300; i++) {
            int lengthMax = 1 << (8 + random.nextInt(11));
            List<long[]> runs = runs(random, 1 + random.nextInt(20), lengthMax);
            copy(copier, runs);
            copy(ordinary, runs);
        }
    }

    @Test
    void shouldCopyEqualRunsOfEveryLengthAroundTheBorders() {
        long[] borders = {
            0,
            RunCopier.STREAMED_RUN_MIN_BYTES,
            4096,
            RunCopier.CUT_MIN_BYTES,
            StreamingCopy.LENGTH_MAX_BYTES,
            LANES * StreamingCopy.LENGTH_MAX_BYTES
        };
        for (long border : borders) {
            for (long lengthBytes = Math.max(0, border - 2); lengthBytes <= border + 2; lengthBytes++) {
                for (int count = 1; count <= 2 * LANES; count++) {
                    List<long[]> runs = new ArrayList<>();
                    for (int i = 0; i < count && (i + 1) * (lengthBytes + 3) < MEMORY_BYTES; i++) {
                        runs.add(new long[] {MEMORY_BYTES - (i + 1) * lengthBytes, i * (lengthBytes + 3), lengthBytes});
                    }
                    copy(copier, runs);
                }
            }
        }
    }

    @Test
    void shouldCopyNothingThatWasDropped() {
        target.fill((byte) 0);
        copier.add(source, 0, target, 0, 4096);
        copier.drop();
        copier.finish();
        copy(copier, List.of(new long[] {0, 8192, 4096}));
    }

    @Test
    void shouldRefuseMemoryThatIsClosedAndARunBeyondItsEnd() {
        for (RunCopier any : List.of(copier, ordinary)) {
            assertThatThrownBy(() -> any.add(source, MEMORY_BYTES - 4095, target, 0, 4096))
                    .isInstanceOf(IndexOutOfBoundsException.class);
            assertThatThrownBy(() -> any.add(source, 0, target, MEMORY_BYTES - 4095, 4096))
                    .isInstanceOf(IndexOutOfBoundsException.class);
            assertThatThrownBy(() -> any.add(source, 0, target, -1, 4096))
                    .isInstanceOf(IndexOutOfBoundsException.class);
            Arena other = Arena.ofConfined();
            MemorySegment gone = other.allocate(4096);
            other.close();
            assertThatThrownBy(() -> any.add(source, 0, gone, 0, 4096)).isInstanceOf(IllegalStateException.class);
            assertThatThrownBy(() -> any.add(gone, 0, target, 0, 4096)).isInstanceOf(IllegalStateException.class);
        }
    }
}
