package io.kvmessenger.transfer.staging;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.GrantedSlabs;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.OpenWindow;
import java.lang.foreign.MemorySegment;

/**
 * The slabs of one peer: copies what has arrived in each to a device, and counts it once its copies are done, in any
 * order.
 *
 * <p>Worker only. Allocates nothing after construction.
 */
final class SlabLanding implements GrantedSlabs, CopyLane.User {
    private final Staging staging;
    private final MemorySegment memory;
    private final long slabBytes;
    private final InboundPort port;
    private final InboundAdmission from;
    private final Figures figures;
    private final Events events;

    // By slab.
    /** Null for a slab that nothing is copied from. */
    private final CopyLane[] lanes;

    private final OpenWindow[] windows;
    private final long[] marks;
    private final int[] imms;
    private final long[] weights;
    private final int[] pageCounts;
    private final long[] payloadBytes;

    private int copyingCount;
    /** The lane with copies that are not marked yet, or null. */
    private CopyLane unmarked;

    private boolean closed;

    /** @param memory of all slabs, in use by this landing alone */
    SlabLanding(
            Staging staging,
            MemorySegment memory,
            InboundPort port,
            InboundAdmission from,
            Figures figures,
            Events events) {
        this.staging = staging;
        this.memory = memory;
        this.port = port;
        this.from = from;
        this.figures = figures;
        this.events = events;
        GrantLimits limits = staging.limits().grants();
        slabBytes = limits.slabBytes();
        int count = limits.slabsPerPeer();
        lanes = new CopyLane[count];
        windows = new OpenWindow[count];
        marks = new long[count];
        imms = new int[count];
        weights = new long[count];
        pageCounts = new int[count];
        payloadBytes = new long[count];
    }

    @Override
    public MemorySegment memory() {
        return memory;
    }

    @Override
    public int count() {
        return lanes.length;
    }

    @Override
    public long slabBytes() {
        return slabBytes;
    }

    @Override
    public boolean isCopying(int slab) {
        return windows[slab] != null;
    }

    @Override
    public void begin(int slab, OpenWindow window, Memory.Device target) {
        CopyLane lane = staging.laneFromHost(target.ordinal());
        if (lane != unmarked) {
            copyLanded();
        }
        windows[slab] = window;
        lanes[slab] = lane;
        marks[slab] = lane.nextMark();
        weights[slab] = 0;
        copyingCount++;
        unmarked = lane;
    }

    @Override
    public void copy(int slab, long offsetBytes, long deviceAddress, long lengthBytes) {
        if (lanes[slab] != null) {
            long pages = slab * (ROOM_BYTES + slabBytes) + ROOM_BYTES;
            lanes[slab].fromHost(deviceAddress, memory.address() + pages + offsetBytes, lengthBytes);
        }
    }

    @Override
    public void finish(int slab, int imm, long weight, int pageCount, long bytes) {
        imms[slab] = imm;
        weights[slab] = weight;
        pageCounts[slab] = pageCount;
        payloadBytes[slab] = bytes;
    }

    @Override
    public void copyLanded() {
        CopyLane lane = unmarked;
        unmarked = null;
        if (lane != null) {
            lane.mark();
        }
    }

    @Override
    public boolean isSettled() {
        return copyingCount == 0;
    }

    @Override
    public void close() {
        closed = true;
        copyLanded();
    }

    boolean isOver() {
        return closed && isSettled();
    }

    /** Counts what was copied; returns the amount of work done. */
    int poll() {
        int work = 0;
        try {
            for (int slab = 0; slab < lanes.length && copyingCount > 0; slab++) {
                if (lanes[slab] != null && lanes[slab].isDone(marks[slab])) {
                    settle(slab);
                    work++;
                }
            }
        } catch (RuntimeException | Error error) {
            events.onError(error);
            work++;
        }
        return work;
    }

    private void settle(int slab) {
        letGo(slab);
        figures.add(TransferCounter.BYTES_RECEIVED, payloadBytes[slab]);
        if (weights[slab] > 0) {
            figures.add(TransferCounter.PAGES_RECEIVED, pageCounts[slab]);
            port.onArrived(from, imms[slab], weights[slab]);
        }
        events.onFree(slab);
    }

    private void letGo(int slab) {
        OpenWindow window = windows[slab];
        windows[slab] = null;
        lanes[slab] = null;
        copyingCount--;
        window.endLanding();
    }

    /** Releases the windows uncounted, and ends the path. */
    @Override
    public void onCopiesFailed(CopyLane failed, DeviceFault fault) {
        boolean uses = false;
        unmarked = unmarked == failed ? null : unmarked;
        for (int slab = 0; slab < lanes.length; slab++) {
            if (lanes[slab] == failed) {
                uses = true;
                letGo(slab);
            }
        }
        if (uses && !closed) {
            events.onCopyFailed(fault.getMessage());
        }
    }
}
