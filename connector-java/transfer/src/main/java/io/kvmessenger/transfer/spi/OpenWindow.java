package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.WindowRanges;
import java.lang.foreign.MemorySegment;

/** Where the writes of one immediate may land. Worker only. */
public interface OpenWindow {
    int regionId();

    WindowRanges ranges();

    /** The region's memory; the ranges lie inside. */
    MemorySegment memory();

    /** Whether the window is this admission's. */
    boolean isOf(InboundAdmission from);

    /**
     * A write begins to land: until {@link #endLanding} the window's memory stays untouched by others.
     *
     * @return false when the window has just been closed; nothing may land, and no endLanding follows
     */
    boolean beginLanding();

    void endLanding();
}
