package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Imm;
import java.util.List;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

final class ImmCountersTest {
    private final ImmCounters counters = new ImmCounters(Imm.SLOT_COUNT_MAX, Imm.GENERATION_COUNT);

    private int open(long expected) {
        int imm = counters.reserve(expected);
        counters.publish(imm);
        return imm;
    }

    @Test
    void shouldFillWhenTheExpectedWeightHasArrived() {
        int imm = open(10);
        assertThat(counters.arrive(Imm.withWeight(imm, 4), 4)).isEqualTo(ImmCounters.COUNTED);
        assertThat(counters.arrive(imm, 6)).isEqualTo(ImmCounters.FILLED);
        assertThat(counters.arrivedWeight(imm)).isEqualTo(10);
    }

    @Test
    void shouldReportAnOvershootOnce() {
        int imm = open(2);
        assertThat(counters.arrive(imm, 2)).isEqualTo(ImmCounters.FILLED);
        assertThat(counters.arrive(imm, 1)).isEqualTo(ImmCounters.OVERSHOT);
        assertThat(counters.arrive(imm, 1)).isEqualTo(ImmCounters.COUNTED);
        assertThat(counters.arrivedWeight(imm)).isEqualTo(4);
    }

    @Test
    void shouldSayNothingMoreWhenNothingIsAdded() {
        int imm = open(2);
        assertThat(counters.arrive(imm, 2)).isEqualTo(ImmCounters.FILLED);
        assertThat(counters.arrive(imm, 0)).isEqualTo(ImmCounters.COUNTED);
    }

    @Test
    void shouldReportWhatHasArrivedWhenItIsRetired() {
        int imm = open(9);
        counters.arrive(imm, 4);
        assertThat(counters.retire(imm)).isEqualTo(4);
        assertThat(counters.isOpen(imm)).isFalse();
    }

    @Test
    void shouldNotRunOver() {
        int imm = open(Long.MAX_VALUE);
        for (int i = 0; i < 3; i++) {
            assertThat(counters.arrive(imm, Long.MAX_VALUE / 4)).isEqualTo(ImmCounters.COUNTED);
        }
        assertThat(counters.isOpen(imm)).isTrue();
    }

    @Test
    void shouldNotCallAnOvershootFilled() {
        assertThat(counters.arrive(open(2), 3)).isEqualTo(ImmCounters.OVERSHOT);
    }

    @Test
    void shouldCallArrivalsStraysUntilPublishedAndAfterRetired() {
        int imm = counters.reserve(1);
        assertThat(counters.arrive(imm, 1)).isEqualTo(ImmCounters.STRAY);
        counters.publish(imm);
        counters.retire(imm);
        assertThat(counters.arrive(imm, 1)).isEqualTo(ImmCounters.STRAY);
        assertThat(counters.arrivedWeight(imm)).isZero();
    }

    @Test
    void shouldNeverCountForAnotherGeneration() {
        int first = open(5);
        counters.retire(first);
        counters.free(first);
        int again = Imm.NONE;
        while (Imm.slot(again) != Imm.slot(first)) {
            again = open(5);
        }
        assertThat(Imm.generation(again)).isEqualTo(1);
        assertThat(counters.arrive(first, 1)).isEqualTo(ImmCounters.STRAY);
        assertThat(counters.arrive(again, 1)).isEqualTo(ImmCounters.COUNTED);
    }

    @Test
    void shouldGiveOutEverySlotOnceAndNeverTheFirst() {
        boolean[] seen = new boolean[Imm.SLOT_COUNT_MAX];
        for (int i = 1; i < Imm.SLOT_COUNT_MAX; i++) {
            int slot = Imm.slot(open(1));
            assertThat(seen[slot]).isFalse();
            seen[slot] = true;
        }
        assertThat(seen[0]).isFalse();
        assertThat(counters.reserve(1)).isEqualTo(Imm.NONE);
    }

    @Test
    void shouldKeepARetiredSlotOutOfUseUntilItIsFreed() {
        int kept = open(1);
        counters.retire(kept);
        for (int i = 0; i < 3 * Imm.SLOT_COUNT_MAX; i++) {
            int imm = open(1);
            assertThat(Imm.slot(imm)).isNotEqualTo(Imm.slot(kept));
            counters.retire(imm);
            counters.free(imm);
        }
    }

    @Test
    void shouldComeRoundAfterAllGenerations() {
        int imm = Imm.NONE;
        for (int i = 0; i < Imm.GENERATION_COUNT * (Imm.SLOT_COUNT_MAX - 1); i++) {
            imm = open(1);
            counters.retire(imm);
            counters.free(imm);
        }
        assertThat(Imm.generation(imm)).isEqualTo(Imm.GENERATION_COUNT - 1);
        assertThat(Imm.generation(open(1))).isZero();
    }

    @Test
    void shouldNotHaveASlotBeyondItsLastOpen() {
        ImmCounters few = new ImmCounters(2, Imm.GENERATION_COUNT);
        assertThat(few.isOpen(Imm.of(2, 0))).isFalse();
    }

    @Test
    void shouldRepeatAnImmediateAfterItsGenerations() {
        ImmCounters few = new ImmCounters(2, 2);
        int first = few.reserve(1);
        few.free(first);
        int second = few.reserve(1);
        few.free(second);
        assertThat(second).isEqualTo(Imm.of(1, 1));
        assertThat(few.reserve(1)).isEqualTo(first);
    }

    /** However they interleave, nothing is lost and one of them sees the sum. */
    @Test
    void shouldLoseNothingThatSeveralWorkersCount() throws InterruptedException {
        int each = 300_000;
        ImmCounters shared = new ImmCounters(2, 1);
        int imm = shared.reserve(2L * each);
        shared.publish(imm);
        AtomicInteger filled = new AtomicInteger();
        CyclicBarrier start = new CyclicBarrier(2);
        List<Thread> workers = Stream.generate(() -> Thread.ofPlatform().unstarted(() -> {
                    await(start);
                    for (int i = 0; i < each; i++) {
                        if (shared.arrive(imm, 1) == ImmCounters.FILLED) {
                            filled.incrementAndGet();
                        }
                    }
                }))
                .limit(2)
                .toList();
        workers.forEach(Thread::start);
        for (Thread worker : workers) {
            worker.join();
        }
        assertThat(shared.arrivedWeight(imm)).isEqualTo(2L * each);
        assertThat(filled).hasValue(1);
    }

    private static void await(CyclicBarrier barrier) {
        try {
            barrier.await();
        } catch (InterruptedException | BrokenBarrierException e) {
            throw new AssertionError(e);
        }
    }
}
