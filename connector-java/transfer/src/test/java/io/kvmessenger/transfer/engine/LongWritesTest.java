package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.TransferOptions;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** Single writes of any length, beside others: all bytes arrive, and each write counts once. */
final class LongWritesTest {
    private static final int MIB = 1 << 20;
    private static final int REGION_BYTES = 24 * MIB;
    private static final int SEEDS = 8;
    /** Duty cycles of the writer from a small write's submit to its completion: post, report, and a poll of its events. */
    private static final int SMALL_CYCLES_MAX = 4;

    static Stream<Arguments> seeds() {
        return Stream.of(TransferOptions.SHM, TransferOptions.TCP)
                .flatMap(transport -> IntStream.range(0, SEEDS).mapToObj(seed -> Arguments.of(transport, (long) seed)));
    }

    /** A length near one of the limits, or any. */
    private static int length(Random random, int maxBytes) {
        int[] limits = {1, 256 << 10, MIB, 2 * MIB, 8 * MIB};
        int drawn = random.nextInt(3) == 0
                ? 1 + random.nextInt(maxBytes)
                : limits[random.nextInt(limits.length)] + random.nextInt(3) - 1;
        return Math.clamp(drawn, 1, maxBytes);
    }

    @ParameterizedTest
    @MethodSource("seeds")
    void shouldBringAllBytesInAnyOrderOfDutyCycles(String transport, long seed) {
        Random random = new Random(seed);
        try (LongWritesBed bed = new LongWritesBed(transport, REGION_BYTES, seed)) {
            List<int[]> writes = new ArrayList<>();
            int at = 0;
            while (at < REGION_BYTES) {
                int lengthBytes = length(random, REGION_BYTES - at);
                writes.add(new int[] {random.nextInt(LongWritesBed.TARGETS), at, lengthBytes});
                at += lengthBytes;
            }
            Collections.shuffle(writes, random);
            for (int[] write : writes) {
                bed.write(bed.targets.get(write[0]), write[1], write[2]);
                for (int steps = random.nextInt(4); steps > 0; steps--) {
                    stepOne(bed, random.nextInt(1 + LongWritesBed.TARGETS));
                }
            }
            bed.until(() -> bed.atWriter.completed.size() == writes.size());
            bed.step();
            for (int i = 0; i < LongWritesBed.TARGETS; i++) {
                LongWritesBed.Target target = bed.targets.get(i);
                int which = i;
                assertThat(target.window.arrivedWeight())
                        .isEqualTo(writes.stream()
                                .filter(write -> write[0] == which)
                                .count());
                for (int[] write : writes) {
                    assertThat(write[0] != which || target.has(write[1], write[2]))
                            .as("%d bytes at %d", write[2], write[1])
                            .isTrue();
                }
                assertThat(target.events.faults).isEmpty();
            }
            assertThat(bed.atWriter.faults).isEmpty();
        }
    }

    private static void stepOne(LongWritesBed bed, int which) {
        if (which == LongWritesBed.TARGETS) {
            bed.stepWriter();
        } else {
            bed.targets.get(which).step();
        }
    }

    /** It was copied as a whole in one duty cycle, for 0.3 s where it had 4 GiB. */
    @Test
    void shouldNotKeepAnotherPeerOrAShorterWriteWaiting() {
        try (LongWritesBed bed = new LongWritesBed(TransferOptions.SHM, REGION_BYTES, 1)) {
            long longWrite = bed.write(bed.targets.get(0), 0, REGION_BYTES - 4096);
            bed.stepWriter();
            long other = bed.write(bed.targets.get(1), 0, 4096);
            long same = bed.write(bed.targets.get(0), REGION_BYTES - 4096, 4096);
            for (int cycle = 0; cycle < SMALL_CYCLES_MAX; cycle++) {
                bed.stepWriter();
            }
            assertThat(bed.atWriter.completed).containsExactlyInAnyOrder(other, same);
            bed.until(() -> bed.atWriter.completed.contains(longWrite));
            assertThat(bed.targets.get(0).has(0, REGION_BYTES)).isTrue();
        }
    }

    /** Each moment in the middle of a long write at which its peer is not wanted any more. */
    @ParameterizedTest
    @MethodSource("seeds")
    void shouldWriteNothingAfterItsPeerWasDisconnected(String transport, long seed) {
        try (LongWritesBed bed = new LongWritesBed(transport, REGION_BYTES, seed)) {
            LongWritesBed.Target gone = bed.targets.get(0);
            LongWritesBed.Target stays = bed.targets.get(1);
            long longWrite = underWay(bed, gone, seed);
            bed.disconnect(gone);
            bed.until(() -> bed.atWriter.hasEnded(longWrite) && !gone.events.faults.isEmpty());
            gone.clear();
            long other = bed.write(stays, 0, REGION_BYTES);
            bed.until(() -> bed.atWriter.completed.contains(other));
            assertThat(gone.isClear()).isTrue();
            assertThat(gone.window.arrivedWeight())
                    .as("over tcp the kernel may have had all of it")
                    .isLessThanOrEqualTo(transport.equals(TransferOptions.SHM) ? 0 : 1);
            assertThat(stays.has(0, REGION_BYTES)).isTrue();
        }
    }

    @ParameterizedTest
    @MethodSource("seeds")
    void shouldFailOnceWhenItsPeerEndsInTheMiddle(String transport, long seed) {
        try (LongWritesBed bed = new LongWritesBed(transport, REGION_BYTES, seed)) {
            LongWritesBed.Target gone = bed.targets.get(0);
            LongWritesBed.Target stays = bed.targets.get(1);
            long longWrite = underWay(bed, gone, seed);
            gone.end();
            long other = bed.write(stays, 0, REGION_BYTES);
            bed.until(() -> bed.atWriter.hasEnded(longWrite) && bed.atWriter.completed.contains(other));
            assertThat(stays.has(0, REGION_BYTES)).isTrue();
        }
    }

    /** A long write of which as many duty cycles have passed as the seed says. */
    private static long underWay(LongWritesBed bed, LongWritesBed.Target target, long seed) {
        long longWrite = bed.write(target, 0, REGION_BYTES);
        for (int cycle = 0; cycle <= seed; cycle++) {
            bed.step();
        }
        return longWrite;
    }
}
