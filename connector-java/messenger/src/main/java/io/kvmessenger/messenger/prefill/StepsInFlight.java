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
 *
 * <p>An engine that tells a number or a position that cannot be is wrong about that step, and perhaps once only. So a step
 * that does not fit moves nothing by which later ones are judged.
 */
final class StepsInFlight {
    private final LayerProgress progress;
    private final int layerCount;
    private final List<StepInFlight> steps = new ArrayList<>(LayerProgress.STEPS_IN_FLIGHT_MAX);
    private boolean anyBegan;
    private long lastIndex;
    /** No step begins before this position of the counter. */
    private long begunTo;

    StepsInFlight(LayerProgress progress, int layerCount) {
        this.progress = progress;
        this.layerCount = layerCount;
    }

    boolean full() {
        return steps.size() == LayerProgress.STEPS_IN_FLIGHT_MAX;
    }

    StepInFlight oldest() {
        return steps.getFirst();
    }

    /** Why this cannot be the next step; empty when it can. */
    String misfit(EngineCommand.Step step) {
        if (anyBegan && step.stepIndex() <= lastIndex) {
            return "step " + step.stepIndex() + " after step " + lastIndex + ", expected a larger number";
        }
        String told = "step " + step.stepIndex() + " from " + Long.toUnsignedString(step.counterStart())
                + " of the layer counter on, expected ";
        if (anyBegan && step.counterStart() - begunTo < 0) {
            return told + Long.toUnsignedString(begunTo) + " or more: the passes before it go as far";
        }
        long ahead = progress.ahead(step.counterStart());
        long aheadMax = LayerProgress.PASSES_QUEUED_MAX * bumpsMax();
        return ahead > aheadMax
                ? told + Long.toUnsignedString(step.counterStart() - ahead + aheadMax) + " or less: the counter shows "
                        + Long.toUnsignedString(step.counterStart() - ahead) + ", and an engine queues no more than "
                        + LayerProgress.PASSES_QUEUED_MAX + " forward passes"
                : "";
    }

    /** Why the step cannot end there; empty when it can. */
    String misfitEnd(StepInFlight step, long counterEnd) {
        long bumps = counterEnd - step.counterStart;
        String told = "the prefiller's engine ended step " + step.index + " at " + Long.toUnsignedString(counterEnd)
                + " of the layer counter, expected ";
        if (bumps < 0) {
            return told + "its start at " + Long.toUnsignedString(step.counterStart) + " or more";
        }
        return bumps > bumpsMax()
                ? told + Long.toUnsignedString(step.counterStart + bumpsMax()) + " or less: a forward pass counts its "
                        + layerCount + " layers and one more at most"
                : "";
    }

    /** What one forward pass may add to the counter. */
    private long bumpsMax() {
        return (long) layerCount + LayerProgress.EXTRA_BUMPS;
    }

    /**
     * A step that was not begun bears a number that is not larger than the last one's. Which of both numbers is wrong is
     * not known, so later steps are judged by the one told last.
     *
     * @return the steps in flight from that number on, which are to be given up
     */
    List<StepInFlight> renumber(EngineCommand.Step step) {
        if (step.stepIndex() > lastIndex) {
            return List.of();
        }
        lastIndex = step.stepIndex();
        return steps.stream().filter(begun -> begun.index >= lastIndex).toList();
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
