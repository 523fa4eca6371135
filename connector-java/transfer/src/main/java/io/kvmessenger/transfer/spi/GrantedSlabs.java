package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Memory;
import java.lang.foreign.MemorySegment;

/**
 * Page-locked host memory that one peer writes to by itself, for device memory that its NIC does not reach: what has
 * arrived in a slab is copied on, and counted only after the copy is done. Then the peer may use the slab again.
 *
 * <p>Worker only. It checks nothing: the target of each byte was checked before.
 */
public interface GrantedSlabs {
    /** Memory in front of the pages of each slab. */
    int ROOM_BYTES = 1 << 12;

    /** The events of the slabs, for their path. */
    interface Events {
        /** What arrived in the slab is in place and counted, or discarded: the peer may write to it again. */
        void onFree(int slab);

        /** A device failed to copy: the arrivals concerned are not counted, and nothing more of them is copied. */
        void onCopyFailed(String detail);

        /** Reporting to the path failed by an error of this engine. */
        void onError(Throwable error);
    }

    /** All slabs in one piece, each of {@link #ROOM_BYTES} and then {@link #slabBytes}. */
    MemorySegment memory();

    int count();

    /** Length of the pages in a slab. */
    long slabBytes();

    /** Whether what has arrived in the slab is still being copied. */
    boolean isCopying(int slab);

    /**
     * Begins the copies from a slab. From now on the slabs hold the window, which has begun its landing.
     *
     * @param target the device memory that they are for
     */
    void begin(int slab, OpenWindow window, Memory.Device target);

    /** Copies a part of the slab's pages to a device address. */
    void copy(int slab, long offsetBytes, long deviceAddress, long lengthBytes);

    /**
     * Ends the copies from a slab.
     *
     * @param weight 0 for what is not counted
     */
    void finish(int slab, int imm, long weight, int pageCount, long payloadBytes);

    /** Marks what was queued; called at the end of taking arrivals in a duty cycle. */
    void copyLanded();

    /** Whether nothing is being copied. */
    boolean isSettled();

    /** Nothing can write to the slabs any more; what has arrived is still copied and counted. */
    void close();
}
