package io.kvmessenger.connector;

import io.kvmessenger.hooks.LayerProgressWatcher;
import io.kvmessenger.messenger.port.LayerProgress;

/** Joins the messenger's port to the layer counter's watcher. For the messenger's thread. */
final class HookedLayerProgress implements LayerProgress {
    private final LayerProgressWatcher watcher;
    private final int layerCount;

    HookedLayerProgress(LayerProgressWatcher watcher, int layerCount) {
        this.watcher = watcher;
        this.layerCount = layerCount;
    }

    @Override
    public void stepBegan(long stepIndex, long counterStart) {
        watcher.beginStep(stepIndex, counterStart, layerCount);
    }

    @Override
    public int readableLayerCount() {
        if (!watcher.stepOpen()) {
            return 0;
        }
        watcher.poll();
        return watcher.readableLayerCount();
    }

    @Override
    public void stepEnded(long stepIndex) {
        watcher.endStep(stepIndex);
    }

    @Override
    public void stepAbandoned() {
        watcher.abandonStep();
    }
}
