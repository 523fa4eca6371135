package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Memory;
import java.lang.foreign.MemorySegment;

/**
 * The target half of an engine, as a worker's domains use it. Looks up admissions and open windows, and counts
 * arrivals. Worker only, except {@link #admissionOf}.
 */
public interface InboundPort {
    /**
     * This worker's live admission whose key has this name, or null; possession of the key must still be proven. When
     * called by another worker, the result may be out of date.
     */
    InboundAdmission admissionOf(byte[] keyName);

    /** The open window with this slot and generation, or null; the caller must still check which admission owns it. */
    OpenWindow windowOf(int imm);

    /** Whether any window is open; while none is, no arrival is awaited. */
    boolean expectsWrites();

    /** Whether bytes for a device's memory can land here and be copied on. Messenger's thread. */
    default boolean copiesTo(Memory.Device memory) {
        return false;
    }

    /**
     * Where a path receives bytes for device memory; closed by the path.
     *
     * @param from the admission of the path
     * @param figures counters of the path's transport
     */
    default Landing landing(InboundAdmission from, Figures figures, Landing.Events events) {
        throw new AssertionError("nothing copies to a device here");
    }

    /**
     * Memory that the peer of a path writes to by itself, and from which it is copied to devices; closed by the path.
     *
     * @param figures counters of the path's transport
     * @return null if none is left
     * @throws io.kvmessenger.transfer.device.DeviceFault when a device's driver refuses memory
     */
    default GrantedSlabs grantSlabs(InboundAdmission from, Figures figures, GrantedSlabs.Events events) {
        return null;
    }

    /** A write arrived too late for its window and was discarded. */
    void onStray();

    /** Adds weight to a counter; the payload is in place and visible. */
    void onArrived(InboundAdmission from, int imm, long weight);

    void onRefused(InboundAdmission from, String detail);

    /** All paths are gone and nothing can be written any more; the admission has ended. */
    void onClosed(InboundAdmission from, String detail);

    /** Takes a message if there is room for it; else false. */
    boolean onMessage(InboundAdmission from, MemorySegment message);

    /** A peer has reported the result of a read; false when it was not asked, or the record is malformed. */
    boolean onReadEnded(InboundAdmission from, MemorySegment answer);

    /** What a peer needs to write to the region through a domain; null if it cannot, or there is no such region. */
    RemoteKey keyOf(Domain domain, int regionId);

    /** Whether every region can be written to through a domain. */
    boolean reachesAll(Domain domain);
}
