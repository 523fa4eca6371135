package io.kvmessenger.transfer;

/** A remote engine that this one writes to: a local handle. */
public interface Peer {
    /** Identifies the peer within this engine. */
    int id();

    /** The name given to {@code connect}, for sentences. */
    String name();

    /** Name of the transport in use; empty until {@code onPeerReady}. */
    String transport();

    /** Bytes of submitted writes that have not ended. Any thread. */
    default long queuedBytes() {
        return 0;
    }

    /**
     * Rate at which queued bytes are sent: a moving average over the time in which any were queued; 0 while unknown.
     * Any thread.
     */
    default double bytesPerSecond() {
        return 0;
    }
}
