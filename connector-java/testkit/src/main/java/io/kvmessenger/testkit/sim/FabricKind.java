package io.kvmessenger.testkit.sim;

/** What a simulated transport does as the real one of its name does. */
enum FabricKind {
    /** The target looks at every write before a byte lands; completed means: in the source's socket buffer. */
    TCP(true, false),
    /**
     * As tcp, but the target's memory is a device's: what has come lies in host memory and is copied on later, also while the process
     * stands still, and is counted when it is copied. A window that is closed, or a path, waits for that.
     */
    STAGED(true, false),
    /** The target is not looked at; completed means: in the target's memory. */
    RDMA(false, true),
    /**
     * The writing process copies; completed means: copied. What is half copied when the process is stopped is copied on
     * when it runs again, so that an admission is closed only when the writer has agreed or is dead.
     */
    SHARED_MEMORY(false, true),
    /**
     * Reliable datagrams, as libfabric has them: nothing looks at the target, and completed means: in the source's send
     * buffer. What has been completed lands when it will, also after a cancel was confirmed.
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
