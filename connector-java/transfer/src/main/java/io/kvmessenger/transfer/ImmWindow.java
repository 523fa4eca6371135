package io.kvmessenger.transfer;

/** An open counter: the imm its writers must carry, and what has arrived. Owned by the thread that polls the engine. */
public interface ImmWindow {
    /** Slot and generation with weight zero: what to tell the peer. */
    int imm();

    long arrivedWeight();

    long expectedWeight();

    /**
     * Closes the window: later writes that carry its imm are refused (tcp) or counted as strays (shm, RDMA). The
     * caller has made sure that none can follow, or accepts that the slot stays unused until the admission ends: pass
     * {@code drained = false} then.
     */
    void close(boolean drained);
}
