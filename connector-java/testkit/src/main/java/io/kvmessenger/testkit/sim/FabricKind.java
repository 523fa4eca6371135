package io.kvmessenger.testkit.sim;

/** Behaviour of a simulated transport, modelled on a real one. */
enum FabricKind {
    /** The target checks every write before a byte lands; completed means: in the source's socket buffer. */
    TCP(true, false),
    /**
     * As tcp, but the target's memory is a device's: received bytes lie in host memory, are copied on later, even while
     * the process is suspended, and are counted once copied. Closing a window or a path waits for that.
     */
    STAGED(true, false),
    /** The target does not see writes; completed means: in the target's memory. */
    RDMA(false, true),
    /**
     * The writing process copies; completed means: copied. A copy interrupted by suspending the process continues when
     * it resumes, so an admission is closed only when the writer has confirmed or is dead.
     */
    SHARED_MEMORY(false, true),
    /**
     * Reliable datagrams, as with libfabric: the target does not see writes, and completed means: in the source's send
     * buffer. Completed writes may land at any time, even after a cancel was confirmed.
     */
    RDM(false, false);

    final boolean targetChecks;
    final boolean completionIsDelivery;

    FabricKind(boolean targetChecks, boolean completionIsDelivery) {
        this.targetChecks = targetChecks;
        this.completionIsDelivery = completionIsDelivery;
    }

    boolean copiesOn() {
        return this == STAGED;
    }

    boolean writerCopies() {
        return this == SHARED_MEMORY;
    }
}
