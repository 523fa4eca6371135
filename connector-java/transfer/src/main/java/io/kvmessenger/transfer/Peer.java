package io.kvmessenger.transfer;

/** A remote engine that this one writes to: a local handle. */
public interface Peer {
    /** Names it in this engine. */
    int id();

    /** What {@code connect} was told it is called, for sentences. */
    String name();

    /** Name of the transport in use; empty until {@code onPeerReady}. */
    String transport();
}
