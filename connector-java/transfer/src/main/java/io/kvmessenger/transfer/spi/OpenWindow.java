package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.WindowRanges;
import java.lang.foreign.MemorySegment;

/** Where the writes of one immediate may land. Immutable. */
public interface OpenWindow {
    int regionId();

    WindowRanges ranges();

    /** The region's memory; the ranges lie inside. */
    MemorySegment memory();
}
