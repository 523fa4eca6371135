package io.kvmessenger.transfer.spi;

/** The data paths of one domain to one peer. Worker only. */
public interface OutboundPaths {
    /** Nothing could be done now, and nothing will tell when it can: look again soon. */
    int LOOK_SOON = -1;

    /** Moves what was posted, and tells what has been sent; returns how much was done, 0 when idle, or {@link #LOOK_SOON}. */
    int doWork(long nowNs);

    /** Ends the paths; no event follows, no byte is sent or written and no source is read any more. Idempotent. */
    void close();
}
