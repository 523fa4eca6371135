package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import java.lang.foreign.MemorySegment;

/** Host memory registered with one engine. Held and released by the messenger's thread, read by the worker. */
final class HostRegion implements Region {
    private final RegionTable table;
    private final RegionDescriptor descriptor;
    private final MemorySegment memory;
    private final int memfd;
    private int holdCount;
    private boolean live = true;

    HostRegion(RegionTable table, RegionDescriptor descriptor, MemorySegment memory, int memfd) {
        this.table = table;
        this.descriptor = descriptor;
        this.memory = memory;
        this.memfd = memfd;
    }

    @Override
    public RegionDescriptor descriptor() {
        return descriptor;
    }

    @Override
    public MemorySegment memory() {
        return memory;
    }

    int memfd() {
        return memfd;
    }

    boolean isLiveIn(RegionTable wanted) {
        return live && table == wanted;
    }

    /** A window begins to point here. */
    void hold() {
        holdCount++;
    }

    void release() {
        holdCount--;
    }

    @Override
    public void deregister() {
        if (holdCount > 0) {
            throw new IllegalStateException(
                    "region " + descriptor.regionId() + " has " + holdCount + " windows that may still be written to");
        }
        if (live) {
            live = false;
            table.remove(this);
        }
    }
}
