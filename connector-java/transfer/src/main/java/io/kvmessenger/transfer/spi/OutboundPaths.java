package io.kvmessenger.transfer.spi;

/** The data paths of one domain to one peer. Worker only. */
public interface OutboundPaths {
    /** Nothing could be done now, and no event will signal when it can: poll again soon. */
    int LOOK_SOON = -1;

    /** Moves what was posted, and reports what was sent; returns the work done, 0 when idle, or {@link #LOOK_SOON}. */
    int doWork(long nowNs);

    /**
     * Ends the paths; no event follows, no byte is sent or written and no source is read any more, except by a device of
     * which {@link #mayStillRead} says so. Idempotent.
     */
    void close();

    /**
     * Whether a device that refuses to end what was posted may still read its sources, although the paths are closed.
     * Asks the device once more, which may take long.
     */
    default boolean mayStillRead() {
        return false;
    }
}
