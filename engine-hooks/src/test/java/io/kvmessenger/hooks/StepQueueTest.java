package io.kvmessenger.hooks;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.management.ManagementFactory;
import java.util.Random;
import org.junit.jupiter.api.Test;

class StepQueueTest {
    private static final int LAYER_COUNT = 4;
    private static final int CAPACITY = 3;

    private final SimulatedCounter engine = new SimulatedCounter();
    private final StepQueue steps = new StepQueue(engine.counter(), StepQueue.LAG_NONE, CAPACITY);
    private final StepQueue lagging = new StepQueue(engine.counter(), StepQueue.LAG_LEAD_ONLY, CAPACITY);

    @Test
    void shouldReleaseLayersOneByOne() {
        engine.set(100);
        steps.begin(7, 100, LAYER_COUNT);
        assertThat(steps.readableLayerCount(7)).isZero();
        for (int layer = 0; layer < LAYER_COUNT; layer++) {
            engine.bump(1);
            assertThat(steps.readableLayerCount(7)).isEqualTo(layer + 1);
        }
        assertThat(steps.isOver(7)).as("its end is not known").isFalse();
        steps.end(7, 104);
        assertThat(steps.isOver(7)).isTrue();
    }

    @Test
    void shouldReleaseSeveralLayersWhenTheCountJumps() {
        steps.begin(0, 0, LAYER_COUNT);
        engine.bump(3);
        assertThat(steps.readableLayerCount(0)).isEqualTo(3);
        engine.bump(1);
        assertThat(steps.readableLayerCount(0)).isEqualTo(4);
    }

    @Test
    void shouldReleaseLayersWithoutHookWhenTheCountReachesTheEnd() {
        steps.begin(0, 0, LAYER_COUNT);
        steps.end(0, 2);
        engine.bump(1);
        assertThat(steps.readableLayerCount(0)).isEqualTo(1);
        assertThat(steps.isOver(0)).isFalse();
        engine.bump(1);
        assertThat(steps.readableLayerCount(0)).isEqualTo(LAYER_COUNT);
        assertThat(steps.isOver(0)).isTrue();
    }

    /** On a GPU the end is told when kernels are queued, and none may have run. */
    @Test
    void shouldReleaseNothingBecauseAnEndIsReported() {
        engine.set(50);
        steps.begin(1, 50, LAYER_COUNT);
        steps.end(1, 54);
        steps.begin(2, 54, LAYER_COUNT);
        steps.end(2, 58);
        steps.begin(3, 58, LAYER_COUNT);
        for (long step = 1; step <= 3; step++) {
            assertThat(steps.readableLayerCount(step)).isZero();
            assertThat(steps.isOver(step)).isFalse();
        }
        engine.set(55);
        assertThat(steps.isOver(1)).isTrue();
        assertThat(steps.readableLayerCount(1)).isEqualTo(LAYER_COUNT);
        assertThat(steps.readableLayerCount(2)).isEqualTo(1);
        assertThat(steps.readableLayerCount(3)).isZero();
        steps.remove(1);
        engine.set(59);
        assertThat(steps.isOver(2)).isTrue();
        assertThat(steps.readableLayerCount(3)).isEqualTo(1);
    }

    @Test
    void shouldReleaseNothingMoreOfARemovedStepAndCountTheNext() {
        steps.begin(0, 0, LAYER_COUNT);
        engine.bump(1);
        steps.remove(0);
        assertThat(steps.count()).isZero();
        assertThatThrownBy(() -> steps.readableLayerCount(0)).hasMessage("step 0 is not in flight");
        steps.begin(1, 1, LAYER_COUNT);
        engine.bump(1);
        assertThat(steps.readableLayerCount(1)).isEqualTo(1);
    }

    /** A pass that failed leaves a gap behind its layers, so a later pass never counts for it. */
    @Test
    void shouldTakeACountBeyondAStepsLayersForNothingWhileItsEndIsNotKnown() {
        steps.begin(1, 0, LAYER_COUNT);
        engine.bump(1);
        assertThat(steps.readableLayerCount(1)).isEqualTo(1);
        engine.set(LAYER_COUNT + 1);
        assertThat(steps.readableLayerCount(1)).isEqualTo(1);
        engine.bump(100);
        assertThat(steps.readableLayerCount(1)).isEqualTo(1);
        steps.end(1, LAYER_COUNT);
        assertThat(steps.readableLayerCount(1)).isEqualTo(LAYER_COUNT);
    }

    @Test
    void shouldIgnoreBumpsOfPassesThatAreNotReported() {
        engine.bump(17);
        steps.begin(0, 17, LAYER_COUNT);
        assertThat(steps.readableLayerCount(0)).isZero();
        steps.end(0, 21);
        engine.bump(LAYER_COUNT);
        assertThat(steps.isOver(0)).isTrue();
        steps.remove(0);
        steps.begin(5, 21 + LAYER_COUNT, LAYER_COUNT); // a pass of decodes is queued between the two
        engine.bump(LAYER_COUNT);
        assertThat(steps.readableLayerCount(5)).isZero();
        engine.bump(2);
        assertThat(steps.readableLayerCount(5)).isEqualTo(2);
    }

    @Test
    void shouldCountAcrossTheWrapOfTheWord() {
        for (int lengthBytes : new int[] {LayerCounter.LENGTH_BYTES, LayerCounter.SHORT_LENGTH_BYTES}) {
            for (long start : new long[] {Long.MAX_VALUE - 5, -6, Integer.MAX_VALUE - 5, (1L << 32) - 6}) {
                SimulatedCounter word = new SimulatedCounter(lengthBytes);
                StepQueue queue = new StepQueue(word.counter(), StepQueue.LAG_NONE, CAPACITY);
                word.set(start);
                for (int step = 0; step < CAPACITY; step++) {
                    queue.begin(step, start + (long) step * LAYER_COUNT, LAYER_COUNT);
                    queue.end(step, start + (step + 1L) * LAYER_COUNT);
                }
                for (int bumped = 1; bumped <= CAPACITY * LAYER_COUNT; bumped++) {
                    word.bump(1);
                    for (int step = 0; step < CAPACITY; step++) {
                        int layers = Math.clamp(bumped - (long) step * LAYER_COUNT, 0, LAYER_COUNT);
                        assertThat(queue.readableLayerCount(step)).isEqualTo(layers);
                        assertThat(queue.isOver(step)).isEqualTo(layers == LAYER_COUNT);
                    }
                }
            }
        }
    }

    @Test
    void shouldWaitForTheNextBumpWhenOnlyTheLeadCounts() {
        lagging.begin(0, 0, LAYER_COUNT);
        engine.bump(1);
        assertThat(lagging.readableLayerCount(0)).isZero();
        engine.bump(1);
        assertThat(lagging.readableLayerCount(0)).isEqualTo(1);
        engine.bump(2);
        assertThat(lagging.readableLayerCount(0)).isEqualTo(LAYER_COUNT - 1);
        lagging.end(0, LAYER_COUNT + 1);
        assertThat(lagging.readableLayerCount(0)).isEqualTo(LAYER_COUNT - 1);
        engine.bump(1);
        assertThat(lagging.readableLayerCount(0)).isEqualTo(LAYER_COUNT);
    }

    /** Passes of any kind are queued ahead of a counter that is looked at now and then. */
    @Test
    void shouldNeverReleaseALayerBeforeItIsCompleteAndEveryLayerInTheEndForRandomQueues() {
        for (int seed = 0; seed < 2_000; seed++) {
            Random random = new Random(seed);
            int lengthBytes = random.nextBoolean() ? LayerCounter.LENGTH_BYTES : LayerCounter.SHORT_LENGTH_BYTES;
            new QueuedPasses(random, lengthBytes, random.nextInt(2)).run();
        }
    }

    /** A device that works through queued passes, and what it has computed in truth. */
    private static final class QueuedPasses {
        private static final int PASSES = 12;

        private final Random random;
        private final SimulatedCounter word;
        private final StepQueue queue;
        private final int lagLayers;
        /** Of each pass: its first position, and bumps of its layers; the one after them is its end. */
        private final long[] starts = new long[PASSES];

        private final int[] hooked = new int[PASSES];
        private final boolean[] failed = new boolean[PASSES];
        private long queued;
        private long shown;
        private int oldest;

        QueuedPasses(Random random, int lengthBytes, int lagLayers) {
            this.random = random;
            this.lagLayers = lagLayers;
            word = new SimulatedCounter(lengthBytes);
            queue = new StepQueue(word.counter(), lagLayers, CAPACITY);
            queued = random.nextBoolean() ? -random.nextInt(40) : Integer.MAX_VALUE - random.nextInt(40);
            shown = queued;
            word.set(shown);
        }

        void run() {
            for (int pass = 0; pass < PASSES; pass++) {
                while (queue.count() == CAPACITY) {
                    show();
                }
                launch(pass);
                show();
            }
            while (queue.count() > 0) {
                show();
            }
        }

        private void launch(int pass) {
            queued += random.nextInt(3) == 0 ? random.nextInt(9) : 0; // passes that are not told
            starts[pass] = queued;
            hooked[pass] = random.nextInt(4) == 0 ? random.nextInt(LAYER_COUNT) : LAYER_COUNT;
            failed[pass] = random.nextInt(6) == 0;
            queue.begin(pass, queued, LAYER_COUNT);
            if (failed[pass]) {
                queued += LAYER_COUNT + 1;
            } else {
                queued += hooked[pass] + 1;
                queue.end(pass, queued);
            }
        }

        /** The counter shows some more of what is queued. */
        private void show() {
            long ahead = queued - shown;
            shown += ahead == 0 ? 0 : random.nextLong(ahead + 1);
            word.set(shown);
            for (int pass = oldest; pass < PASSES && queue.count() > 0 && pass < oldest + queue.count(); pass++) {
                long passed = Math.max(0, shown - starts[pass]);
                boolean complete = !failed[pass] && passed > hooked[pass];
                int layers = complete ? LAYER_COUNT : Math.clamp(passed - lagLayers, 0, LAYER_COUNT);
                int readable = queue.readableLayerCount(pass);
                assertThat(readable).isBetween(0, layers);
                assertThat(readable == LAYER_COUNT || !complete).isTrue();
                assertThat(queue.isOver(pass)).isEqualTo(complete);
            }
            while (queue.count() > 0 && (queue.isOver(oldest) || (failed[oldest] && random.nextInt(3) == 0))) {
                queue.remove(oldest++);
            }
        }
    }

    @Test
    void shouldRefuseStepsOutOfTurn() {
        assertThatThrownBy(() -> steps.end(0, 0)).hasMessage("step 0 is not in flight");
        steps.begin(3, 10, LAYER_COUNT);
        assertThatThrownBy(() -> steps.begin(3, 14, LAYER_COUNT)).hasMessage("step 3 begins after step 3");
        assertThatThrownBy(() -> steps.end(3, 9)).hasMessage("step 3 ends at 9, expected at or after its start at 10");
        assertThatThrownBy(() -> steps.begin(4, 14, 0)).hasMessage("step 4 has 0 layers, expected at least 1");
        steps.begin(4, 14, LAYER_COUNT);
        steps.begin(5, 18, LAYER_COUNT);
        assertThatThrownBy(() -> steps.begin(6, 22, LAYER_COUNT)).hasMessage("step 6 begins with 3 steps in flight");
        steps.remove(4);
        steps.begin(6, 22, LAYER_COUNT);
        assertThat(steps.count()).isEqualTo(3);
    }

    @Test
    void shouldAllocateNothing() {
        com.sun.management.ThreadMXBean threads = (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
        runSteps(0, 20_000);
        long before = threads.getCurrentThreadAllocatedBytes();
        long released = runSteps(20_000, 40_000);
        long allocated = threads.getCurrentThreadAllocatedBytes() - before;
        assertThat(released).isEqualTo(20_000L * LAYER_COUNT);
        // One byte a step would be 20,000; compiling threads may charge a little to this one.
        assertThat(allocated).isLessThan(4_096);
    }

    private long runSteps(int fromStep, int toStep) {
        long released = 0;
        for (int step = fromStep; step < toStep; step++) {
            long start = (long) step * LAYER_COUNT;
            steps.begin(step, start, LAYER_COUNT);
            for (int layer = 0; layer < LAYER_COUNT; layer++) {
                engine.bump(1);
                steps.readableLayerCount(step);
            }
            steps.end(step, start + LAYER_COUNT);
            released += steps.readableLayerCount(step);
            steps.remove(step);
        }
        return released;
    }
}
