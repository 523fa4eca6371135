package io.kvmessenger.transfer;

/** A remote engine that this one writes to: a local handle. */
public interface Peer {
    int id();

    String name();

    /** Name of the transport in use; empty until {@code onPeerReady}. */
    String transport();
}
