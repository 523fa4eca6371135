package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Memory;
import java.lang.foreign.MemorySegment;

/**
 * The target half of an engine, as a worker's domains see it: who may write what where, and what has arrived. Worker only,
 * except {@link #admissionOf}.
 */
public interface InboundPort {
    /**
     * The live admission of this worker's whose key has this name, or null; that a peer has the key must still be shown. Another
     * worker may ask: what it hears may have ended already.
     */
    InboundAdmission admissionOf(byte[] keyName);

    /** The open window with this slot and generation, or null; whose it is must still be asked. */
    OpenWindow windowOf(int imm);

    /** Whether any window is open; while none is, nothing that comes is waited for. */
    boolean expectsWrites();

    /** Whether bytes for a device's memory can land here and be copied on. Messenger's thread. */
    default boolean copiesTo(Memory.Device memory) {
        return false;
    }

    /**
     * Where a path lets land what is for a device's memory; closed by the path.
     *
     * @param from whose path it is
     * @param figures of the path's transport
     */
    default Landing landing(InboundAdmission from, Figures figures, Landing.Events events) {
        throw new AssertionError("nothing copies to a device here");
    }

    /** A write came too late for its window and was discarded. */
    void onStray();

    /** Adds weight to a counter; the payload is in place and visible. */
    void onArrived(InboundAdmission from, int imm, long weight);

    void onRefused(InboundAdmission from, String detail);

    /** All paths are gone, none can write any more; the admission is dead. */
    void onClosed(InboundAdmission from, String detail);

    /** Takes a message if there is room for it. */
    boolean onMessage(InboundAdmission from, MemorySegment message);

    /** A peer has said what became of a read; false when it was not asked, or says nothing. */
    boolean onReadEnded(InboundAdmission from, MemorySegment answer);

    /** What a peer needs to write to the region through a domain; null where it cannot, and for no region of this engine. */
    RemoteKey keyOf(Domain domain, int regionId);

    /** Whether every region can be written to through a domain. */
    boolean reachesAll(Domain domain);
}
