package io.kvmessenger.transfer;

/** An open counter: the imm its writers must carry, and what has arrived. Owned by the thread that polls the engine. */
public interface ImmWindow {
    /** Slot and generation with weight zero: what to tell the peer. */
    int imm();

    /** What has been counted so far. */
    long arrivedWeight();

    /** What fills it. */
    long expectedWeight();

    /**
     * Closes the window. When this returns, no byte of a write that carries its imm lands any more on tcp, not even the
     * rest of one that is half received; such writes are discarded and counted as strays. On shared memory and RDMA,
     * where the target cannot look, only the writer's word or the end of the admission gives that certainty.
     *
     * <p>May wait for the worker to let go of a half received write: bounded by one duty cycle.
     *
     * @param drained whether the caller has made sure that the writer posts nothing more for this imm; if not, the slot
     *     stays unused until the admission ends
     */
    void close(boolean drained);
}
