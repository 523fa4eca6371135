package io.kvmessenger.transfer.link;

import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.spi.Domain;
import java.util.List;

/**
 * The control sockets of an engine: one for each peer, whatever its data paths are. They authenticate peers, open and
 * end the paths of domains, and carry small messages. Worker only, except where stated.
 */
public interface Links {
    /** Lets peers open paths of these domains. Called once, before the worker begins. */
    void use(List<Domain> domains);

    /**
     * Starts to connect to a peer; the events report the result. Never blocks.
     *
     * @throws IllegalArgumentException when the address is invalid
     */
    OutboundLink connect(EngineAddress target, byte[] admissionKey, LinkEvents events, long nowNs);

    /** Does the work without descriptors; returns the amount done, 0 when idle. */
    int poll(long nowNs);

    /** Closes the links of all peers that write here, and their paths, without events. */
    void close();
}
