package io.kvmessenger.hooks;

/**
 * Forward passes in flight, and how many layers of each may be read, as determined by the layer counter alone.
 *
 * <p>A step is a range of counter positions. It begins at the count when all earlier passes are complete, which may be
 * ahead of the current count, and ends at a position that is known once all its increments are queued. While the count
 * is within the step's layers, each increment makes one more of them readable. The step is over, and every layer
 * readable, hooked or not, when its end is known and the count has reached it. A count beyond the step's own layers
 * proves nothing while the end is unknown: the pass may have failed, and a later one may be counting.
 *
 * <p>Passes are computed in order, so a later step's count covers all steps before it. Positions wrap; see
 * {@link LayerCounter#past}.
 *
 * <p>For one thread. It reads no clock, starts no thread and allocates nothing after construction.
 */
public final class StepQueue {
    /** For one rank, or one counter per rank: a count of c proves that layers 0 to c - 1 are complete. */
    public static final int LAG_NONE = 0;
    /**
     * For several ranks with the lead rank's counter only, incremented before the layer's all-reduce: the increment of
     * layer l proves that the other ranks have finished the layers before l. The last layer waits for the end of the
     * step.
     */
    public static final int LAG_LEAD_ONLY = 1;

    private final LayerCounter counter;
    private final int lagLayers;
    private final Step[] slots;
    private int count;

    private static final class Step {
        private long index;
        private long start;
        private int layerCount;
        private long end;
        private boolean ended;
        private int readableLayerCount;
    }

    /**
     * @param lagLayers how many increments after its own prove a layer complete: {@link #LAG_NONE} or
     *     {@link #LAG_LEAD_ONLY}
     * @param capacity limit on steps in flight
     */
    public StepQueue(LayerCounter counter, int lagLayers, int capacity) {
        if (lagLayers < 0) {
            throw new IllegalArgumentException("lagLayers is " + lagLayers + ", expected at least 0");
        }
        if (capacity < 1) {
            throw new IllegalArgumentException("capacity is " + capacity + ", expected at least 1");
        }
        this.counter = counter;
        this.lagLayers = lagLayers;
        this.slots = new Step[capacity];
        for (int slot = 0; slot < capacity; slot++) {
            slots[slot] = new Step();
        }
    }

    /**
     * A forward pass is queued or already running.
     *
     * @param stepIndex larger than that of every step in flight
     * @param start the position before the pass's first increment
     * @param layerCount number of layers of the pass
     */
    public void begin(long stepIndex, long start, int layerCount) {
        if (layerCount < 1) {
            throw new IllegalArgumentException(
                    "step " + stepIndex + " has " + layerCount + " layers, expected at least 1");
        }
        if (count > 0 && stepIndex <= slots[count - 1].index) {
            throw new IllegalStateException("step " + stepIndex + " begins after step " + slots[count - 1].index);
        }
        if (count == slots.length) {
            throw new IllegalStateException("step " + stepIndex + " begins with " + count + " steps in flight");
        }
        Step step = slots[count++];
        step.index = stepIndex;
        step.start = start;
        step.layerCount = layerCount;
        step.ended = false;
        step.readableLayerCount = 0;
    }

    /**
     * All increments of the pass are queued.
     *
     * @param end the position at which every layer of the step is complete, not before its start
     */
    public void end(long stepIndex, long end) {
        Step step = find(stepIndex);
        if (end - step.start < 0) {
            throw new IllegalArgumentException("step " + stepIndex + " ends at " + Long.toUnsignedString(end)
                    + ", expected at or after its start at " + Long.toUnsignedString(step.start));
        }
        step.end = end;
        step.ended = true;
    }

    /** The step is over, or its layers are not awaited any more. */
    public void remove(long stepIndex) {
        int at = slotOf(stepIndex);
        Step removed = slots[at];
        count--;
        System.arraycopy(slots, at + 1, slots, at, count - at);
        slots[count] = removed;
    }

    /** Layers {@code 0} to this minus one of the step may be read. */
    public int readableLayerCount(long stepIndex) {
        Step step = find(stepIndex);
        long passed = counter.past(step.start);
        if (isOver(step)) {
            step.readableLayerCount = step.layerCount;
        } else if (passed > 0 && passed <= step.layerCount) {
            step.readableLayerCount = Math.max(step.readableLayerCount, (int) passed - lagLayers);
        }
        return step.readableLayerCount;
    }

    /** Whether the counter has reached the step's end. */
    public boolean isOver(long stepIndex) {
        return isOver(find(stepIndex));
    }

    /** Distance in increments from the count to a position; negative when the count has passed it. */
    public long ahead(long position) {
        return -counter.past(position);
    }

    private boolean isOver(Step step) {
        return step.ended && counter.past(step.end) >= 0;
    }

    public int count() {
        return count;
    }

    private Step find(long stepIndex) {
        return slots[slotOf(stepIndex)];
    }

    private int slotOf(long stepIndex) {
        for (int slot = 0; slot < count; slot++) {
            if (slots[slot].index == stepIndex) {
                return slot;
            }
        }
        throw new IllegalStateException("step " + stepIndex + " is not in flight");
    }
}
