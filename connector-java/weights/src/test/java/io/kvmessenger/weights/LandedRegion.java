package io.kvmessenger.weights;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import java.lang.foreign.MemorySegment;

/** A registered memory of tests, without a transfer engine. */
record LandedRegion(MemorySegment content) implements Region {
    @Override
    public RegionDescriptor descriptor() {
        return new RegionDescriptor(1, content.byteSize(), RegionDescriptor.VERSION, false);
    }

    @Override
    public Memory memory() {
        return Memory.host(content);
    }

    @Override
    public void deregister() {}
}
