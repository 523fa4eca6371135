package io.kvmessenger.transfer.nic;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.GrantedSlabs;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.OpenWindow;
import java.lang.foreign.MemorySegment;

/**
 * The frames that one peer writes into its slabs: checks each against its window, then has its pages copied to the
 * device.
 *
 * <p>Worker only. The peer can change a slab at any time, so a header is copied before it is read; pages that are changed
 * while they are copied are the peer's own. A frame that comes too late for its window is discarded.
 */
public final class FrameIntake implements GrantedSlabs.Events {
    /** The events of the frames, for their path. */
    public interface Events {
        /** A frame does not keep to its window: nothing of it is copied. */
        void onRefused(String detail);

        void onGarbage(String detail);

        void onCopyFailed(String detail);

        /** Working on frames failed by an error of this engine. */
        void onError(Throwable error);
    }

    /** Where the pages would begin in the copy of a header. */
    private static final int AT = GrantedSlabs.ROOM_BYTES;

    private final InboundPort port;
    private final InboundAdmission from;
    private final Events events;
    private final MemorySegment header = MemorySegment.ofArray(new long[GrantedSlabs.ROOM_BYTES / Long.BYTES]);
    /** Set once, at first. */
    private GrantedSlabs slabs;
    /** Slabs that the peer may use again and does not know of yet, as bits. */
    private long freed;

    private FrameIntake(InboundPort port, InboundAdmission from, Events events) {
        this.port = port;
        this.from = from;
        this.events = events;
    }

    /**
     * Slabs for a peer, and what becomes of its frames.
     *
     * @param figures counters of the path's transport
     * @return null if no slabs are left
     * @throws io.kvmessenger.transfer.device.DeviceFault when a device's driver refuses memory
     */
    public static FrameIntake open(InboundPort port, InboundAdmission from, Figures figures, Events events) {
        FrameIntake made = new FrameIntake(port, from, events);
        made.slabs = port.grantSlabs(from, figures, made);
        return made.slabs == null ? null : made;
    }

    /** The memory that the peer writes to. */
    public MemorySegment memory() {
        return slabs.memory();
    }

    /** What the peer has to know of it. */
    public SlabGrant grant(RemoteMemory registered) {
        return new SlabGrant(registered, slabs.count(), slabs.slabBytes());
    }

    /** Whether an immediate is a frame's. */
    public static boolean isFrame(int imm) {
        return FrameImm.isFrame(imm);
    }

    /** A frame has arrived, of which all bytes are visible. */
    public void take(int imm) {
        int slab = FrameImm.slab(imm);
        if (slab >= slabs.count() || slabs.isCopying(slab) || isFreed(slab)) {
            events.onGarbage("a frame has come to slab " + slab + ", which the peer may not write to now");
            return;
        }
        long pagesAt = slab * (GrantedSlabs.ROOM_BYTES + slabs.slabBytes()) + GrantedSlabs.ROOM_BYTES;
        MemorySegment.copy(slabs.memory(), pagesAt - GrantedSlabs.ROOM_BYTES, header, 0, GrantedSlabs.ROOM_BYTES);
        String fault = FrameHeader.fault(header, AT, slabs.slabBytes());
        if (fault != null) {
            events.onGarbage(fault);
            return;
        }
        OpenWindow window = port.windowOf(FrameHeader.window(header, AT));
        String refusal = window == null ? null : refusal(window);
        if (refusal != null) {
            events.onRefused(refusal);
        } else if (window == null || !window.beginLanding()) {
            // Writes may still be in flight when a window is closed: that is no fault of the peer.
            port.onStray();
            onFree(slab);
        } else {
            copy(slab, window);
        }
    }

    private boolean isFreed(int slab) {
        return (freed & 1L << slab) != 0;
    }

    /** Why the frame may not be written to the window that it names, or null. */
    private String refusal(OpenWindow window) {
        if (!window.isOf(from)) {
            return describe() + " names a window of another peer";
        }
        int regionId = FrameHeader.regionId(header, AT);
        int part = window.area().partIndexOf(regionId);
        if (part < 0) {
            return describe() + " names region " + regionId + ", on which its window does not lie";
        }
        if (!(window.memory(part) instanceof Memory.Device)) {
            return describe() + " is a frame for region " + regionId + ", which is no device's";
        }
        WindowRanges ranges = window.area().parts().get(part).ranges();
        int count = FrameHeader.pageCount(header, AT);
        long pageBytes = FrameHeader.pageBytes(header, AT);
        for (int i = 0; i < count; i++) {
            long offset = FrameHeader.targetOffset(header, AT, i);
            if (!ranges.contains(offset, pageBytes)) {
                return describe() + " at offset " + offset + " of " + pageBytes + " bytes leaves its window on region "
                        + regionId;
            }
        }
        return null;
    }

    private String describe() {
        int imm = FrameHeader.window(header, AT);
        return "a write of " + from.admission().peerName() + " with slot " + Imm.slot(imm) + " generation "
                + Imm.generation(imm);
    }

    /** Queues the copies; pages that are contiguous in the target are copied as one. */
    private void copy(int slab, OpenWindow window) {
        int part = window.area().partIndexOf(FrameHeader.regionId(header, AT));
        Memory.Device device = (Memory.Device) window.memory(part);
        int count = FrameHeader.pageCount(header, AT);
        long pageBytes = FrameHeader.pageBytes(header, AT);
        slabs.begin(slab, window, device);
        for (int i = 0; i < count && pageBytes > 0; ) {
            long to = FrameHeader.targetOffset(header, AT, i);
            int next = i + 1;
            while (next < count && FrameHeader.targetOffset(header, AT, next) == to + (next - i) * pageBytes) {
                next++;
            }
            slabs.copy(slab, i * pageBytes, device.address() + to, (next - i) * pageBytes);
            i = next;
        }
        slabs.finish(slab, FrameHeader.window(header, AT), FrameHeader.weight(header, AT), count, count * pageBytes);
    }

    /** Ends taking arrivals in a duty cycle. */
    public void copyLanded() {
        slabs.copyLanded();
    }

    /** Slabs that the peer may use again, as bits; it does not know of them yet. */
    public long freed() {
        return freed;
    }

    /** The peer knows of all of them now. */
    public void onFreedReported() {
        freed = 0;
    }

    /** Whether nothing is being copied. */
    public boolean isSettled() {
        return slabs.isSettled();
    }

    /** Nothing can write to the slabs any more. */
    public void close() {
        slabs.close();
    }

    @Override
    public void onFree(int slab) {
        freed |= 1L << slab;
    }

    @Override
    public void onCopyFailed(String detail) {
        events.onCopyFailed(detail);
    }

    @Override
    public void onError(Throwable error) {
        events.onError(error);
    }
}
