package io.kvmessenger.transfer;

import java.lang.foreign.MemorySegment;

/** Memory registered with an engine: a local handle. Its {@link #descriptor()} is what a peer needs to write to it. */
public interface Region {
    /** What peers are told of it. */
    RegionDescriptor descriptor();

    /** What was registered. */
    Memory memory();

    /**
     * The bytes, where the processor can read and write them.
     *
     * @throws AssertionError where they are a device's: no domain that copies by the processor takes such a region
     */
    default MemorySegment hostBytes() {
        return switch (memory()) {
            case Memory.Host host -> host.bytes();
            case Memory.Device device -> throw new AssertionError("the processor copies " + device);
        };
    }

    /** Ends the registration. The caller has made sure that no window is open on it. */
    void deregister();
}
