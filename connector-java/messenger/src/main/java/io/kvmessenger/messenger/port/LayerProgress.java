package io.kvmessenger.messenger.port;

/**
 * Port: how far the forward passes in flight have come, by the engine's layer counter. Asked by the messenger's thread only.
 *
 * <p>A step may be asked about from {@link #stepBegan} until {@link #forget}.
 */
public interface LayerProgress {
    /** Forward passes that may be in flight; the messenger begins no other before it has forgotten one. */
    int STEPS_IN_FLIGHT_MAX = 8;

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

    /** The step is over, has failed or is given up. */
    void forget(long stepIndex);
}
