package io.kvmessenger.messenger.port;

/**
 * Port: the progress of the forward passes in flight, by the engine's layer counter. Called by the messenger's thread
 * only.
 *
 * <p>A step may be queried from {@link #stepBegan} until {@link #forget}.
 */
public interface LayerProgress {
    /** Limit on forward passes in flight; the messenger begins another only after forgetting one. */
    int STEPS_IN_FLIGHT_MAX = 8;
    /** Limit on the passes that an engine may have queued beyond the counter's value, reported here or not. */
    int PASSES_QUEUED_MAX = 64;
    /** Increments of a pass beyond one per layer: one after its last kernel, or one for the gap of a failed pass. */
    int EXTRA_BUMPS = 1;

    /**
     * @param stepIndex larger than that of every step before
     * @param counterStart the counter's value when all earlier passes are complete
     */
    void stepBegan(long stepIndex, long counterStart);

    /**
     * The pass is queued to its end; from here on its layers become readable by the counter alone.
     *
     * @param counterEnd the counter's value when the pass is complete, at or after its start
     */
    void stepEnded(long stepIndex, long counterEnd);

    /** Number of the step's layers whose KV is readable, in firing order; all of them when the step is over. */
    int readableLayerCount(long stepIndex);

    /** Whether the counter has reached the step's end. */
    boolean isOver(long stepIndex);

    /** Distance in increments from the counter's value to a position; negative when the counter has passed it. */
    long ahead(long position);

    /** The step is over, has failed or was abandoned. */
    void forget(long stepIndex);
}
