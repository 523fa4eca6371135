package io.kvmessenger.transfer;

import java.util.List;

/** How an engine can be reached, one entry for each transport it offers, fastest first. A value; sent to peers. */
public record EngineAddress(List<TransportAddress> transports) {
    /** Longest encoded form that a peer has to accept. */
    public static final int LENGTH_MAX_BYTES = 4096;

    public EngineAddress {
        transports = List.copyOf(transports);
    }

    /**
     * A transport by which the engine can be reached.
     *
     * @param transport the transport's name: {@code shm}, {@code tcp}
     * @param location transport-specific, e.g. {@code 127.0.0.1:41234}
     */
    public record TransportAddress(String transport, String location) {}
}
