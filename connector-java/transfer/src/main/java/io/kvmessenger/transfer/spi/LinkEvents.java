package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.MemorySegment;

/** What happens to an {@link OutboundLink}. Worker only; never called from within its methods but doWork. */
public interface LinkEvents {
    /** Once: the peer knows this engine, paths may be opened. */
    void onOpened();

    /** The peer wants to read; false when it wants more at once than it may. The payload is valid during the call only. */
    boolean onAsked(MemorySegment payload);

    /** Once: the peer can be reached no more. Its paths are still open: to be closed before the link is. */
    void onLost(TransferFault fault, String detail);
}
