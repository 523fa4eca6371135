package io.kvmessenger.transfer.staging;

import io.kvmessenger.transfer.device.DeviceAccess;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * The slabs of a worker that peers write to: a group of them for each peer, in one piece of page-locked memory.
 *
 * <p>Worker only. Memory is pinned for the first peer that needs it, and kept for the next one.
 */
final class SlabGroups {
    private final GrantLimits limits;
    private final long groupBytes;
    private final DeviceAccess access;
    private final List<MemorySegment> free = new ArrayList<>();
    private int pinnedCount;

    /** @param roomBytes memory in front of the pages of each slab */
    SlabGroups(GrantLimits limits, long roomBytes, DeviceAccess access) {
        this.limits = limits;
        groupBytes = limits.slabsPerPeer() * (roomBytes + limits.slabBytes());
        this.access = access;
    }

    /**
     * A group that no peer writes to; null if all are in use.
     *
     * @throws io.kvmessenger.transfer.device.DeviceFault when the driver refuses memory
     */
    MemorySegment take() {
        if (!free.isEmpty()) {
            return free.removeLast();
        }
        if (pinnedCount == limits.peerCount()) {
            return null;
        }
        MemorySegment group = access.pin(groupBytes);
        pinnedCount++;
        return group;
    }

    /** Nothing can write to it any more, and no copy reads it. */
    void give(MemorySegment group) {
        free.add(group);
    }
}
