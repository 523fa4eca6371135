package io.kvmessenger.transfer;

/** An open counter: the imm that its writers must carry, and the arrived weight. Owned by the polling thread. */
public interface ImmWindow {
    /** Slot and generation with weight zero, as sent to the peer. */
    int imm();

    /** The weight counted so far. */
    long arrivedWeight();

    /** The weight that completes the window. */
    long expectedWeight();

    /**
     * Closes the window. When this returns, no byte of a write that carries its imm lands any more on tcp, not even the
     * rest of one that is half received; such writes are discarded and counted as strays. On shared memory and RDMA,
     * where the target does not see writes, only the writer's confirmation or the end of the admission gives that
     * certainty.
     *
     * <p>May wait for the worker to abandon a half-received write: bounded by one duty cycle.
     *
     * @param drained whether the caller has ensured that the writer posts nothing more for this imm; if not, the slot
     *     stays unused until the admission ends
     */
    void close(boolean drained);
}
