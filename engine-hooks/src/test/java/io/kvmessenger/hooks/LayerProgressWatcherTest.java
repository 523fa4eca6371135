package io.kvmessenger.hooks;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.management.ManagementFactory;
import org.junit.jupiter.api.Test;

class LayerProgressWatcherTest {
    private static final int LAYER_COUNT = 4;

    private final SimulatedCounter engine = new SimulatedCounter();
    private final LayerProgressWatcher watcher =
            new LayerProgressWatcher(engine.counter(), LayerProgressWatcher.LAG_NONE);
    private final LayerProgressWatcher lagging =
            new LayerProgressWatcher(engine.counter(), LayerProgressWatcher.LAG_LEAD_ONLY);

    @Test
    void shouldReleaseLayersOneByOneAndNoneTwice() {
        engine.set(100);
        watcher.beginStep(7, 100, LAYER_COUNT);
        assertThat(watcher.poll()).isZero();
        for (int layer = 0; layer < LAYER_COUNT; layer++) {
            engine.bump(1);
            assertThat(watcher.poll()).isEqualTo(1);
            assertThat(watcher.readableLayerCount()).isEqualTo(layer + 1);
            assertThat(watcher.poll()).isZero();
        }
        assertThat(watcher.endStep(7)).isZero();
    }

    @Test
    void shouldReleaseSeveralLayersWhenTheCountJumps() {
        watcher.beginStep(0, 0, LAYER_COUNT);
        engine.bump(3);
        assertThat(watcher.poll()).isEqualTo(3);
        engine.bump(1);
        assertThat(watcher.poll()).isEqualTo(1);
    }

    @Test
    void shouldSweepLayersWithoutHookAtTheEndOfTheStep() {
        watcher.beginStep(0, 0, LAYER_COUNT);
        engine.bump(1);
        assertThat(watcher.poll()).isEqualTo(1);
        assertThat(watcher.endStep(0)).isEqualTo(3);
        assertThat(watcher.readableLayerCount()).isEqualTo(LAYER_COUNT);
        assertThat(watcher.stepOpen()).isFalse();
    }

    @Test
    void shouldReleaseNothingMoreOfAnAbandonedStepAndBeginTheNext() {
        watcher.beginStep(0, 0, LAYER_COUNT);
        engine.bump(1);
        watcher.abandonStep();
        assertThat(watcher.poll()).isZero();
        assertThat(watcher.readableLayerCount()).isZero();
        watcher.beginStep(1, 1, LAYER_COUNT);
        engine.bump(1);
        assertThat(watcher.poll()).isEqualTo(1);
    }

    @Test
    void shouldIgnoreBumpsOutsideSteps() {
        engine.bump(17);
        assertThat(watcher.poll()).isZero();
        watcher.beginStep(0, 17, LAYER_COUNT);
        assertThat(watcher.poll()).isZero();
        watcher.endStep(0);
        engine.bump(LAYER_COUNT);
        assertThat(watcher.poll()).isZero();
        watcher.beginStep(5, 17 + LAYER_COUNT, LAYER_COUNT);
        assertThat(watcher.poll()).isZero();
        engine.bump(2);
        assertThat(watcher.poll()).isEqualTo(2);
    }

    @Test
    void shouldReleaseTheStepsLayersAndNoMoreWhenLaterStepsRanBeforeItLooked() {
        watcher.beginStep(0, 0, LAYER_COUNT);
        engine.bump(3 * LAYER_COUNT);
        assertThat(watcher.poll()).isEqualTo(LAYER_COUNT);
        assertThat(watcher.poll()).isZero();
    }

    @Test
    void shouldReleaseNothingWhileTheCountIsBeforeTheStep() {
        engine.set(5);
        watcher.beginStep(0, 9, LAYER_COUNT);
        assertThat(watcher.poll()).isZero();
        engine.set(10);
        assertThat(watcher.poll()).isEqualTo(1);
    }

    @Test
    void shouldCountAcrossTheWrapOfTheWord() {
        engine.set(Long.MAX_VALUE - 1);
        watcher.beginStep(0, Long.MAX_VALUE - 1, LAYER_COUNT);
        engine.bump(3);
        assertThat(watcher.poll()).isEqualTo(3);
    }

    @Test
    void shouldWaitForTheNextBumpWhenOnlyTheLeadCounts() {
        lagging.beginStep(0, 0, LAYER_COUNT);
        engine.bump(1);
        assertThat(lagging.poll()).isZero();
        engine.bump(1);
        assertThat(lagging.poll()).isEqualTo(1);
        engine.bump(2);
        assertThat(lagging.poll()).isEqualTo(2);
        assertThat(lagging.readableLayerCount()).isEqualTo(LAYER_COUNT - 1);
        assertThat(lagging.endStep(0)).isEqualTo(1);
    }

    /** Every way in which bumps and polls can interleave in two steps, each ended after any number of bumps. */
    @Test
    void shouldReleaseEveryLayerExactlyOnceAndNeverEarlyForAllInterleavings() {
        for (int lagLayers = 0; lagLayers <= 1; lagLayers++) {
            for (int hooked = 0; hooked <= LAYER_COUNT; hooked++) {
                for (int polls = 0; polls < 1 << hooked; polls++) {
                    SimulatedCounter counter = new SimulatedCounter();
                    LayerProgressWatcher both = new LayerProgressWatcher(counter.counter(), lagLayers);
                    runStep(both, counter, 1, 0, hooked, polls, lagLayers);
                    runStep(both, counter, 2, hooked, hooked, ~polls, lagLayers);
                }
            }
        }
    }

    private static void runStep(
            LayerProgressWatcher watcher,
            SimulatedCounter counter,
            long step,
            long counterStart,
            int hooked,
            int polls,
            int lagLayers) {
        watcher.beginStep(step, counterStart, LAYER_COUNT);
        int released = 0;
        for (int bumped = 1; bumped <= hooked; bumped++) {
            counter.bump(1);
            if ((polls >> (bumped - 1) & 1) == 1) {
                released += watcher.poll();
                assertThat(released).isEqualTo(Math.max(0, bumped - lagLayers));
            }
        }
        released += watcher.endStep(step);
        assertThat(released).isEqualTo(LAYER_COUNT);
        assertThat(watcher.poll()).isZero();
    }

    @Test
    void shouldRefuseStepsOutOfTurn() {
        assertThatThrownBy(() -> watcher.endStep(0)).hasMessage("step 0 ends, but no step is under way");
        watcher.beginStep(3, 0, LAYER_COUNT);
        assertThatThrownBy(() -> watcher.beginStep(4, 0, LAYER_COUNT))
                .hasMessage("step 4 begins, but step 3 has not ended");
        assertThatThrownBy(() -> watcher.endStep(4)).hasMessage("step 4 ends, but step 3 is under way");
        watcher.endStep(3);
        assertThatThrownBy(() -> watcher.beginStep(3, 0, LAYER_COUNT)).hasMessage("step 3 begins after step 3");
        assertThatThrownBy(() -> watcher.beginStep(4, 0, 0)).hasMessage("step 4 has 0 layers, expected at least 1");
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
            watcher.beginStep(step, (long) step * LAYER_COUNT, LAYER_COUNT);
            for (int layer = 0; layer < LAYER_COUNT; layer++) {
                engine.bump(1);
                released += watcher.poll();
            }
            released += watcher.endStep(step);
        }
        return released;
    }
}
