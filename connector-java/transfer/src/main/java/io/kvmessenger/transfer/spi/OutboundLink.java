package io.kvmessenger.transfer.spi;

/** The data paths to one peer. Worker only. */
public interface OutboundLink {
    /** Moves what is queued; returns how much was done, 0 when idle. */
    int doWork(long nowNs);

    /** Ends the paths; no event follows, no byte is sent and no source is read any more. Idempotent. */
    void close();
}
