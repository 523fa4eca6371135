package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.LayerProgress;
import java.util.ArrayList;
import java.util.List;

/**
 * The forward passes that are queued or run, oldest first. State only, owned by the messenger's thread; {@link Prefiller}
 * drives it.
 *
 * <p>A step is over when the layer counter has reached its end, whatever the engine has said meanwhile of this one or of
 * later ones.
 */
final class StepsInFlight {
    private final LayerProgress progress;
    private final List<StepInFlight> steps = new ArrayList<>(LayerProgress.STEPS_IN_FLIGHT_MAX);
    private boolean anyBegan;
    private long lastIndex;
    /** No step begins before this position of the counter. */
    private long begunTo;

    StepsInFlight(LayerProgress progress) {
        this.progress = progress;
    }

    boolean full() {
        return steps.size() == LayerProgress.STEPS_IN_FLIGHT_MAX;
    }

    StepInFlight oldest() {
        return steps.getFirst();
    }

    /** Why this cannot be the next step; empty when it can. */
    String misfit(EngineCommand.Step step) {
        if (!anyBegan) {
            return "";
        }
        if (step.stepIndex() <= lastIndex) {
            return "step " + step.stepIndex() + " after step " + lastIndex + ", expected a larger number";
        }
        return step.counterStart() - begunTo < 0
                ? "step " + step.stepIndex() + " from " + Long.toUnsignedString(step.counterStart())
                        + " of the layer counter on, expected " + Long.toUnsignedString(begunTo)
                        + " or more: the passes before it go as far"
                : "";
    }

    /** Adds a step that fits; there is room for it. */
    StepInFlight begin(EngineCommand.Step step) {
        StepInFlight begun = new StepInFlight(step.stepIndex(), step.counterStart());
        anyBegan = true;
        lastIndex = step.stepIndex();
        begunTo = step.counterStart();
        progress.stepBegan(step.stepIndex(), step.counterStart());
        steps.add(begun);
        return begun;
    }

    /** The step of that number; null when it is over or was given up. */
    StepInFlight find(long stepIndex) {
        for (StepInFlight step : steps) {
            if (step.index == stepIndex) {
                return step;
            }
        }
        return null;
    }

    /** All bumps of the step are queued. */
    void end(StepInFlight step, long counterEnd) {
        progress.stepEnded(step.index, counterEnd);
        if (counterEnd - begunTo > 0) {
            begunTo = counterEnd;
        }
    }

    void forget(StepInFlight step) {
        if (steps.remove(step)) {
            progress.forget(step.index);
        }
    }

    /** A prompt is computed by none of them any more. */
    void remove(Prefill prefill) {
        for (StepInFlight step : steps) {
            step.prefills.remove(prefill);
        }
        prefill.forgetRunning();
    }

    /** Notes which layers have become readable. */
    void note(long nowNs) {
        for (StepInFlight step : steps) {
            step.onReadable(progress.readableLayerCount(step.index));
            for (Prefill prefill : step.prefills) {
                prefill.onReadable(step, nowNs);
            }
        }
    }

    /** Takes out the oldest step whose end the counter has reached; null when there is none. */
    StepInFlight takeOver() {
        for (StepInFlight step : steps) {
            if (progress.isOver(step.index)) {
                forget(step);
                return step;
            }
        }
        return null;
    }

    /** One of them computes layers that a decoder waits for. */
    boolean awaited() {
        for (StepInFlight step : steps) {
            if (step.awaited()) {
                return true;
            }
        }
        return false;
    }
}
