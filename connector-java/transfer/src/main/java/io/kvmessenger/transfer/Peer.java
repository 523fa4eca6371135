package io.kvmessenger.transfer;

/** A remote engine that this one writes to: a local handle. */
public interface Peer {
    /** Names it in this engine. */
    int id();

    /** What {@code connect} was told it is called, for sentences. */
    String name();

    /** Name of the transport in use; empty until {@code onPeerReady}. */
    String transport();

    /** Bytes of writes that were submitted and have not ended. Any thread. */
    default long queuedBytes() {
        return 0;
    }

    /** How fast such bytes are sent: a moving average over the time in which there were any; 0 while unknown. Any thread. */
    default double bytesPerSecond() {
        return 0;
    }
}
