package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.EngineAddress;
import java.util.List;

/**
 * The control sockets of an engine: one for each peer, whatever its data travels on. They show who is who, open and end the
 * paths of domains, and carry small messages. Worker only, except where said.
 */
public interface Links {
    /** Lets peers open paths of these domains. Once, before the worker begins. */
    void use(List<Domain> domains);

    /**
     * Starts to reach a peer; the events tell how it went. Never blocks.
     *
     * @throws IllegalArgumentException when the address is none
     */
    OutboundLink connect(EngineAddress target, byte[] admissionKey, LinkEvents events, long nowNs);

    /** Does what no descriptor tells of; returns how much was done, 0 when idle. */
    int poll(long nowNs);

    /** Closes all links of peers that write here, and their paths, without events. */
    void close();
}
