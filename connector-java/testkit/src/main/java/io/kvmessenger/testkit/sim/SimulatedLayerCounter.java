package io.kvmessenger.testkit.sim;

import io.kvmessenger.hooks.LayerCounter;
import io.kvmessenger.hooks.StepQueue;
import io.kvmessenger.messenger.port.LayerProgress;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * A layer counter in native memory, which the simulated device writes and the messenger reads as in production. For the
 * simulation's thread.
 */
final class SimulatedLayerCounter implements LayerProgress {
    private final MemorySegment word = Arena.ofAuto().allocate(LayerCounter.LENGTH_BYTES, LayerCounter.LENGTH_BYTES);
    private final StepQueue steps;
    private final int layerCount;

    /** @param start its value before the first increment */
    SimulatedLayerCounter(long start, ComputedLayers layers) {
        this.steps = new StepQueue(new LayerCounter(word), layers.counterLag(), STEPS_IN_FLIGHT_MAX);
        this.layerCount = layers.count();
        set(start);
    }

    void set(long count) {
        word.set(ValueLayout.JAVA_LONG, 0, count);
    }

    @Override
    public void stepBegan(long stepIndex, long counterStart) {
        steps.begin(stepIndex, counterStart, layerCount);
    }

    @Override
    public void stepEnded(long stepIndex, long counterEnd) {
        steps.end(stepIndex, counterEnd);
    }

    @Override
    public int readableLayerCount(long stepIndex) {
        return steps.readableLayerCount(stepIndex);
    }

    @Override
    public boolean isOver(long stepIndex) {
        return steps.isOver(stepIndex);
    }

    @Override
    public long ahead(long position) {
        return steps.ahead(position);
    }

    @Override
    public void forget(long stepIndex) {
        steps.remove(stepIndex);
    }
}
