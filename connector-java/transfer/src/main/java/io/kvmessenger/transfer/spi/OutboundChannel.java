package io.kvmessenger.transfer.spi;

import java.lang.foreign.MemorySegment;

/** The writer's end of a {@link PeerChannel}. Worker only. */
public interface OutboundChannel extends PeerChannel {
    /**
     * Asks the peer's domain of the same transport for paths; from now on the reader hears what is said.
     *
     * @param wish the domain's own
     * @return false when there is no room for the question, or too much was asked of this peer
     */
    boolean open(MemorySegment wish, Reader reader);

    /** What shows that this engine was admitted. */
    byte[] admissionKey();

    /** The next descriptor that came with a record, now the caller's; or {@link #NO_DESCRIPTOR}. */
    int takeDescriptor();

    /** Reads what the peer has said: probably it arrived before the event that is looked at. */
    void drain(long nowNs);
}
