package io.kvmessenger.transfer;

import java.lang.foreign.MemorySegment;

/** Memory registered with an engine: a local handle. Its {@link #descriptor()} is what a peer needs to write to it. */
public interface Region {
    /** The memory has no file descriptor by which another process could map it. */
    int NOT_SHAREABLE = -1;

    RegionDescriptor descriptor();

    MemorySegment memory();

    /** Ends the registration. The caller has made sure that no window is open on it. */
    void deregister();
}
