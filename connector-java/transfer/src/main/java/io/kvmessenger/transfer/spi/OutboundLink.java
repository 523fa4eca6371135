package io.kvmessenger.transfer.spi;

/** The data paths to one peer by one transport. Worker only. */
public interface OutboundLink {
    /** Nothing could be done now, and nothing will tell when it can: look again soon. */
    int LOOK_SOON = -1;

    /** Moves what was posted, and tells what has been sent; returns how much was done, 0 when idle, or {@link #LOOK_SOON}. */
    int doWork(long nowNs);

    /** Ends the paths; no event follows, no byte is sent and no source is read any more. Idempotent. */
    void close();
}
