package io.kvmessenger.transfer;

import java.lang.foreign.MemorySegment;

/** Memory registered with an engine: a local handle. A peer needs its {@link #descriptor()} to write to it. */
public interface Region {
    /** The form of the region that is sent to peers. */
    RegionDescriptor descriptor();

    Memory memory();

    /**
     * The bytes, if the CPU can access them.
     *
     * @throws AssertionError for device memory: no domain that copies by the CPU accepts such a region
     */
    default MemorySegment hostBytes() {
        return switch (memory()) {
            case Memory.Host host -> host.bytes();
            case Memory.Device device -> throw new AssertionError("the processor copies " + device);
        };
    }

    /** Ends the registration. The caller ensures that no window is open on it. */
    void deregister();
}
