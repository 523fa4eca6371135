package io.kvmessenger.transfer.staging;

import io.kvmessenger.transfer.device.DeviceAccess;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * A worker's page-locked memory for one direction, divided into slabs, and how many of them each holder has.
 *
 * <p>Worker only. Fairness: when several holders have or want slabs, each may have an equal share, and earlier waiters
 * come first; a slow holder keeps its share from the others, and no more. Taking a slab allocates nothing; the memory
 * is pinned when the first is taken.
 */
final class SlabPool {
    static final int NONE = -1;

    /** A user of slabs, for one peer. */
    static final class Holder {
        private int held;
        private boolean holdsLong;
        /** Position in the queue of waiters; {@link Long#MAX_VALUE} while it does not wait. */
        private long ticket = Long.MAX_VALUE;

        private boolean wantsLong;
        private boolean listed;
    }

    private final StagingLimits limits;
    private final long roomBytes;
    private final DeviceAccess access;
    private final boolean[] taken;
    /** Holders that have or want slabs. */
    private final List<Holder> active = new ArrayList<>();

    private MemorySegment memory = MemorySegment.NULL;
    private long lastTicket;
    private int freeCount;

    SlabPool(StagingLimits limits, DeviceAccess access) {
        this(limits, 0, access);
    }

    /** @param roomBytes memory in front of each slab, for a header */
    SlabPool(StagingLimits limits, int roomBytes, DeviceAccess access) {
        this.limits = limits;
        this.roomBytes = roomBytes;
        this.access = access;
        taken = new boolean[limits.allSlabs()];
        freeCount = limits.slabCount();
    }

    /** All slabs, contiguous; empty before the first is taken. */
    MemorySegment memory() {
        return memory;
    }

    long offsetBytes(int slab) {
        return slab * (roomBytes + limits.slabBytes()) + roomBytes;
    }

    /** Length of the memory in front of each slab, which belongs to the slab's holder too. */
    long roomBytes() {
        return roomBytes;
    }

    long address(int slab) {
        return memory.address() + offsetBytes(slab);
    }

    /** Takes {@code count} adjacent slabs and returns the first; {@link #NONE} if the holder has to wait. */
    int take(Holder holder, int count) {
        boolean isLong = count > 1;
        if (!isLong && holder.held >= share(holder)) {
            rest(holder);
            return NONE;
        }
        if (isLong ? !mayTakeLong(holder) : freeCount <= earlier(holder, false)) {
            await(holder, isLong);
            return NONE;
        }
        if (memory.byteSize() == 0) {
            memory = access.pin(limits.allSlabs() * (roomBytes + limits.slabBytes()));
        }
        int first = isLong ? limits.slabCount() : firstFree();
        for (int slab = first; slab < first + count; slab++) {
            taken[slab] = true;
        }
        if (isLong) {
            holder.holdsLong = true;
        } else {
            holder.held++;
            freeCount--;
        }
        holder.ticket = Long.MAX_VALUE;
        list(holder);
        return first;
    }

    private int share(Holder holder) {
        return Math.max(1, limits.slabCount() / Math.max(1, active.size() + (holder.listed ? 0 : 1)));
    }

    private boolean mayTakeLong(Holder holder) {
        return !taken[limits.slabCount()] && earlier(holder, true) == 0;
    }

    /** Number of holders that have waited for longer. */
    private int earlier(Holder holder, boolean forLong) {
        int count = 0;
        for (int i = 0; i < active.size(); i++) {
            Holder other = active.get(i);
            boolean waits = other != holder && other.ticket != Long.MAX_VALUE && other.wantsLong == forLong;
            count += waits && other.ticket < holder.ticket ? 1 : 0;
        }
        return count;
    }

    private int firstFree() {
        int slab = 0;
        while (taken[slab]) {
            slab++;
        }
        return slab;
    }

    private void await(Holder holder, boolean forLong) {
        if (holder.ticket == Long.MAX_VALUE) {
            holder.ticket = ++lastTicket;
        }
        holder.wantsLong = forLong;
        list(holder);
    }

    /** Removes the holder from the queue of waiters. */
    void rest(Holder holder) {
        holder.ticket = Long.MAX_VALUE;
        delistIfIdle(holder);
    }

    private static boolean isWaiting(Holder holder) {
        return holder.ticket != Long.MAX_VALUE;
    }

    void give(Holder holder, int first) {
        if (first >= limits.slabCount()) {
            holder.holdsLong = false;
            for (int slab = first; slab < taken.length; slab++) {
                taken[slab] = false;
            }
        } else {
            taken[first] = false;
            holder.held--;
            freeCount++;
        }
        delistIfIdle(holder);
    }

    private void list(Holder holder) {
        if (!holder.listed) {
            holder.listed = true;
            active.add(holder);
        }
    }

    private void delistIfIdle(Holder holder) {
        if (holder.listed && holder.held == 0 && !holder.holdsLong && !isWaiting(holder)) {
            holder.listed = false;
            active.remove(holder);
        }
    }
}
