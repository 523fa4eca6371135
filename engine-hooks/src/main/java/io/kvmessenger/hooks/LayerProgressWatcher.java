package io.kvmessenger.hooks;

/**
 * Turns the layer counter into layers of the current step that may be read.
 *
 * <p>Steps are epochs: a step begins where the count stood before its forward pass, and ends with a sweep, because by
 * then every layer is complete, hooked or not. Bumps outside a step are ignored. Between the two, {@link #poll} says how
 * many more layers have become readable; a count that jumped several layers, or beyond the step because later ones ran
 * before this thread looked, is no different from one that was seen layer by layer.
 *
 * <p>For one thread. It knows no time, starts no thread and allocates nothing.
 */
public final class LayerProgressWatcher {
    /** One rank, or a counter for each: a count of c proves that layers 0 to c - 1 are complete. */
    public static final int LAG_NONE = 0;
    /**
     * Only the lead rank's counter is seen, and it is bumped before the layer's all-reduce: the bump of layer l proves
     * that the other ranks have finished the layers before l. The last layer is left to the sweep.
     */
    public static final int LAG_LEAD_ONLY = 1;

    private static final long NO_STEP = -1;

    private final LayerCounter counter;
    private final int lagLayers;

    private long stepIndex = NO_STEP;
    private boolean stepOpen;
    private long counterStart;
    private int layerCount;
    private int readableLayerCount;

    /** @param lagLayers how many bumps after its own prove a layer complete: {@link #LAG_NONE} or {@link #LAG_LEAD_ONLY} */
    public LayerProgressWatcher(LayerCounter counter, int lagLayers) {
        if (lagLayers < 0) {
            throw new IllegalArgumentException("lagLayers is " + lagLayers + ", expected at least 0");
        }
        this.counter = counter;
        this.lagLayers = lagLayers;
    }

    /**
     * A forward pass is about to run, or runs already.
     *
     * @param stepIndex larger than that of every step before
     * @param counterStart the count before the pass bumped anything
     * @param layerCount layers of the pass
     */
    public void beginStep(long stepIndex, long counterStart, int layerCount) {
        if (stepOpen) {
            throw new IllegalStateException(
                    "step " + stepIndex + " begins, but step " + this.stepIndex + " has not ended");
        }
        if (stepIndex <= this.stepIndex) {
            throw new IllegalStateException("step " + stepIndex + " begins after step " + this.stepIndex);
        }
        if (layerCount < 1) {
            throw new IllegalArgumentException(
                    "step " + stepIndex + " has " + layerCount + " layers, expected at least 1");
        }
        this.stepIndex = stepIndex;
        this.counterStart = counterStart;
        this.layerCount = layerCount;
        readableLayerCount = 0;
        stepOpen = true;
    }

    /** How many layers have become readable since the last call: the last ones of {@link #readableLayerCount}. */
    public int poll() {
        if (!stepOpen) {
            return 0;
        }
        long proven = Math.clamp(counter.count() - counterStart - lagLayers, 0, layerCount);
        return advanceTo(Math.max(readableLayerCount, (int) proven));
    }

    /** The forward pass is over and every layer complete. Returns how many have become readable by that. */
    public int endStep(long stepIndex) {
        if (!stepOpen || stepIndex != this.stepIndex) {
            throw new IllegalStateException("step " + stepIndex + " ends, but "
                    + (stepOpen ? "step " + this.stepIndex + " is under way" : "no step is under way"));
        }
        stepOpen = false;
        return advanceTo(layerCount);
    }

    /** The forward pass failed: no further layer becomes readable. Harmless when no step is under way. */
    public void abandonStep() {
        stepOpen = false;
    }

    private int advanceTo(int readable) {
        int newlyReadable = readable - readableLayerCount;
        readableLayerCount = readable;
        return newlyReadable;
    }

    /** Layers {@code 0} to this minus one of the current or last step may be read. */
    public int readableLayerCount() {
        return readableLayerCount;
    }

    public boolean stepOpen() {
        return stepOpen;
    }
}
