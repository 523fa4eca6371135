package io.kvmessenger.messenger.prefill;

import java.util.ArrayList;
import java.util.List;

/** A forward pass that is not over, and the prompts that it computes a chunk of. State only, of {@link StepsInFlight}. */
final class StepInFlight {
    final long index;
    final long counterStart;
    final List<Prefill> prefills = new ArrayList<>();
    /** As the layer counter was seen last. */
    private int readableLayerCount;

    StepInFlight(long index, long counterStart) {
        this.index = index;
        this.counterStart = counterStart;
    }

    void add(Prefill prefill) {
        if (!prefills.contains(prefill)) {
            prefills.add(prefill);
        }
    }

    /** Layers that may be read, in firing order. */
    int readableLayerCount() {
        return readableLayerCount;
    }

    void onReadable(int layerCount) {
        readableLayerCount = layerCount;
    }

    /** It computes layers that a decoder waits for. */
    boolean awaited() {
        for (Prefill prefill : prefills) {
            for (Delivery delivery : prefill.deliveries) {
                if (!delivery.stopped) {
                    return true;
                }
            }
        }
        return false;
    }
}
