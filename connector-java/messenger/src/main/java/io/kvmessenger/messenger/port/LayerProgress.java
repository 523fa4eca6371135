package io.kvmessenger.messenger.port;

/**
 * Port: how far the forward passes in flight have come, by the engine's layer counter. Asked by the messenger's thread only.
 *
 * <p>A step may be asked about from {@link #stepBegan} until {@link #forget}.
 */
public interface LayerProgress {
    /** Forward passes that may be in flight; the messenger begins no other before it has forgotten one. */
    int STEPS_IN_FLIGHT_MAX = 8;
    /** Passes that an engine may have queued beyond what the counter shows, told ones and others. */
    int PASSES_QUEUED_MAX = 64;
    /** Bumps of a pass beside those of its layers: the one that follows its last kernel, or the gap of one that failed. */
    int EXTRA_BUMPS = 1;

    /**
     * @param stepIndex larger than that of every step before
     * @param counterStart where the counter stands when all passes before it are complete
     */
    void stepBegan(long stepIndex, long counterStart);

    /**
     * The pass is queued to its end; layers become readable by the count alone.
     *
     * @param counterEnd where the counter stands when the pass is complete, at or after its start
     */
    void stepEnded(long stepIndex, long counterEnd);

    /** Layers of the step whose KV is readable, counted in firing order; all of them when it is over. */
    int readableLayerCount(long stepIndex);

    /** Whether the count has reached the step's end. */
    boolean isOver(long stepIndex);

    /** How many bumps a position is ahead of what the counter shows now; negative when the count has passed it. */
    long ahead(long position);

    /** The step is over, has failed or is given up. */
    void forget(long stepIndex);
}
