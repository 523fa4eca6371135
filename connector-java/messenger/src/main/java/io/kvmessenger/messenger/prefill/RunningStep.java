package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.LayerProgress;
import java.util.ArrayList;
import java.util.List;

/**
 * The forward pass that runs, and the prompts that it computes a chunk of. State only, owned by the messenger's thread;
 * {@link Prefiller} drives it.
 */
final class RunningStep {
    private final LayerProgress progress;
    private final List<Prefill> prefills = new ArrayList<>();
    /** A forward pass has begun and not ended. */
    private boolean open;

    RunningStep(LayerProgress progress) {
        this.progress = progress;
    }

    boolean open() {
        return open;
    }

    void begin(EngineCommand.Step step) {
        open = true;
        progress.stepBegan(step.stepIndex(), step.counterStart());
    }

    void add(Prefill prefill) {
        if (!prefills.contains(prefill)) {
            prefills.add(prefill);
        }
    }

    void remove(Prefill prefill) {
        prefills.remove(prefill);
    }

    /** Its layers are complete. Returns the prompts that it computed. */
    List<Prefill> end(long stepIndex) {
        progress.stepEnded(stepIndex);
        return close();
    }

    /** Its end was never told. Returns the prompts that it was to compute. */
    List<Prefill> abandon() {
        progress.stepAbandoned();
        return close();
    }

    private List<Prefill> close() {
        open = false;
        List<Prefill> ended = List.copyOf(prefills);
        prefills.clear();
        return ended;
    }

    /** Notes which layers have become readable. */
    void note(long nowNs) {
        if (!prefills.isEmpty()) {
            int readable = progress.readableLayerCount();
            for (Prefill prefill : prefills) {
                prefill.chunks.onReadableBefore(readable, nowNs);
            }
        }
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
