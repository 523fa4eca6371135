package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.LayerProgress;
import java.util.ArrayList;
import java.util.List;

/**
 * The forward passes that are queued or running, oldest first. State only, owned by the messenger's thread;
 * {@link Prefiller} drives it.
 *
 * <p>A step is over when the layer counter has reached its end, whatever the engine reports about this or later steps.
 *
 * <p>An engine that reports an impossible number or position is wrong about that step, perhaps only once. So a step
 * that is invalid does not change the state by which later ones are checked.
 */
final class StepsInFlight {
    private final LayerProgress progress;
    private final int layerCount;
    private final List<StepInFlight> steps = new ArrayList<>(LayerProgress.STEPS_IN_FLIGHT_MAX);
    private boolean anyBegan;
    private long lastIndex;
    /** No further step may begin before this position of the counter. */
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
        String reported = "step " + step.stepIndex() + " from " + Long.toUnsignedString(step.counterStart())
                + " of the layer counter on, expected ";
        if (anyBegan && step.counterStart() - begunTo < 0) {
            return reported + Long.toUnsignedString(begunTo) + " or more: the passes before it go as far";
        }
        long ahead = progress.ahead(step.counterStart());
        long aheadMax = LayerProgress.PASSES_QUEUED_MAX * bumpsMax();
        return ahead > aheadMax
                ? reported + Long.toUnsignedString(step.counterStart() - ahead + aheadMax)
                        + " or less: the counter shows "
                        + Long.toUnsignedString(step.counterStart() - ahead) + ", and an engine queues no more than "
                        + LayerProgress.PASSES_QUEUED_MAX + " forward passes"
                : "";
    }

    /** Why the step cannot end there; empty when it can. */
    String misfitEnd(StepInFlight step, long counterEnd) {
        long bumps = counterEnd - step.counterStart;
        String reported = "the prefiller's engine ended step " + step.index + " at " + Long.toUnsignedString(counterEnd)
                + " of the layer counter, expected ";
        if (bumps < 0) {
            return reported + "its start at " + Long.toUnsignedString(step.counterStart) + " or more";
        }
        return bumps > bumpsMax()
                ? reported + Long.toUnsignedString(step.counterStart + bumpsMax())
                        + " or less: a forward pass counts its " + layerCount + " layers and one more at most"
                : "";
    }

    /** Largest number of increments by one forward pass. */
    private long bumpsMax() {
        return (long) layerCount + LayerProgress.EXTRA_BUMPS;
    }

    /**
     * Handles a step whose number is not larger than the last one's. Which of the two numbers is wrong is unknown, so
     * later steps are checked against the newer one.
     *
     * @return the steps in flight from that number on, which have to be abandoned
     */
    List<StepInFlight> renumber(EngineCommand.Step step) {
        if (step.stepIndex() > lastIndex) {
            return List.of();
        }
        lastIndex = step.stepIndex();
        return steps.stream().filter(begun -> begun.index >= lastIndex).toList();
    }

    /** Adds a valid step; the caller has checked that there is room. */
    StepInFlight begin(EngineCommand.Step step, long nowNs) {
        StepInFlight begun = new StepInFlight(step.stepIndex(), step.counterStart(), nowNs);
        anyBegan = true;
        lastIndex = step.stepIndex();
        begunTo = step.counterStart();
        progress.stepBegan(step.stepIndex(), step.counterStart());
        steps.add(begun);
        return begun;
    }

    /**
     * The last moment at which the engine could name the prompts that it has queued: now, or, while a forward pass
     * runs, the beginning of the last one.
     */
    long namedPromptsNs(long nowNs) {
        return steps.isEmpty() ? nowNs : steps.getLast().begunNs;
    }

    /** The step of that number; null when it is over or was abandoned. */
    StepInFlight find(long stepIndex) {
        for (StepInFlight step : steps) {
            if (step.index == stepIndex) {
                return step;
            }
        }
        return null;
    }

    /** All increments of the step are queued. */
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

    void remove(Prefill prefill) {
        for (StepInFlight step : steps) {
            step.prefills.remove(prefill);
        }
        prefill.forgetRunning();
    }

    /** Reads the layer counter, and notes which layers have become readable. */
    void note(long nowNs) {
        for (StepInFlight step : steps) {
            step.onReadable(progress.readableLayerCount(step.index));
            for (Prefill prefill : step.prefills) {
                prefill.onReadable(step, nowNs);
            }
        }
    }

    /** Removes and returns the oldest step if the counter has reached its end; else null. */
    StepInFlight takeOver() {
        for (StepInFlight step : steps) {
            if (progress.isOver(step.index)) {
                forget(step);
                return step;
            }
        }
        return null;
    }

    /** Whether a decoder waits for layers that one of them computes. */
    boolean awaited() {
        for (StepInFlight step : steps) {
            if (step.awaited()) {
                return true;
            }
        }
        return false;
    }
}
