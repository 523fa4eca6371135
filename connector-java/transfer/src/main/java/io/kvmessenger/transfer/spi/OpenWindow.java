package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.WindowArea;

/** Where the writes of one immediate may land. Worker only. */
public interface OpenWindow {
    WindowArea area();

    /** The memory that holds part {@code partIndex} of the {@link #area}. */
    Memory memory(int partIndex);

    boolean isOf(InboundAdmission from);

    /**
     * A write begins to land: until {@link #endLanding} the window's memory stays untouched by others.
     *
     * @return false when the window has just been closed; nothing may land, and no endLanding follows
     */
    boolean beginLanding();

    void endLanding();
}
