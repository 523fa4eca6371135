package io.kvmessenger.transfer.spi;

import java.lang.foreign.MemorySegment;
import java.net.InetAddress;

/** The writer's end of a {@link PeerChannel}. Worker only. */
public interface OutboundChannel extends PeerChannel {
    /**
     * Requests paths from the peer's domain of the same transport; from now on the reader receives its records.
     *
     * @param wish specific to the domain
     * @return false when there is no room for the request, or this peer has been asked too often
     */
    boolean open(MemorySegment wish, Reader reader);

    /**
     * The address at which the peer has been reached, or else the first, of a location of the peer's whose host is a
     * name. Null if it is unknown, or not known yet.
     */
    default InetAddress addressOf(String location) {
        return null;
    }

    /** The key that proves this engine's admission. */
    byte[] admissionKey();

    /** The next descriptor that came with a record, now the caller's; or {@link #NO_DESCRIPTOR}. */
    int takeDescriptor();

    /** Bytes of this and other channels to the peer that its machine has not acknowledged; 0 if that is unknown. */
    default long unacknowledgedBytes() {
        return 0;
    }

    /** Reads what the peer has sent, which probably arrived before the event being handled. */
    void drain(long nowNs);
}
