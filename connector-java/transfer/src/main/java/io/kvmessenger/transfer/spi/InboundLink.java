package io.kvmessenger.transfer.spi;

/** The data paths that one admitted peer opened to this engine. Worker only. */
public interface InboundLink {
    /** Ends the paths; {@link InboundPort#onClosed} follows as soon as the peer cannot write any more. */
    void revoke(String detail);
}
