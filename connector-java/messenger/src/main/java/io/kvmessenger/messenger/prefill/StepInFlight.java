package io.kvmessenger.messenger.prefill;

import java.util.ArrayList;
import java.util.List;

/** A forward pass that is not over, and the prompts of its chunks. State only, owned by {@link StepsInFlight}. */
final class StepInFlight {
    final long index;
    final long counterStart;
    final long begunNs;
    final List<Prefill> prefills = new ArrayList<>();
    /** As of the last look at the layer counter. */
    private int readableLayerCount;

    StepInFlight(long index, long counterStart, long begunNs) {
        this.index = index;
        this.counterStart = counterStart;
        this.begunNs = begunNs;
    }

    void add(Prefill prefill) {
        if (!prefills.contains(prefill)) {
            prefills.add(prefill);
        }
    }

    /** Number of readable layers, in firing order. */
    int readableLayerCount() {
        return readableLayerCount;
    }

    void onReadable(int layerCount) {
        readableLayerCount = layerCount;
    }

    /** Whether a decoder waits for layers that it computes. */
    boolean awaited() {
        for (Prefill prefill : prefills) {
            for (Delivery delivery : prefill.deliveries) {
                if (!delivery.stopped()) {
                    return true;
                }
            }
        }
        return false;
    }
}
