package io.kvmessenger.connector;

import io.kvmessenger.hooks.LayerCounter;
import io.kvmessenger.hooks.StepQueue;
import io.kvmessenger.messenger.port.LayerProgress;

/** Implements the messenger's port by the steps of the layer counter. For the messenger's thread. */
final class HookedLayerProgress implements LayerProgress {
    private final StepQueue steps;
    private final int layerCount;

    /** @param lagLayers how many increments after its own prove a layer complete on all ranks of the lead's stage */
    HookedLayerProgress(LayerCounter counter, int lagLayers, int layerCount) {
        this.steps = new StepQueue(counter, lagLayers, STEPS_IN_FLIGHT_MAX);
        this.layerCount = layerCount;
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
