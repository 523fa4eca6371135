package io.kvmessenger.transfer.link;

import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.MemorySegment;

/** The events of an {@link OutboundLink}. Worker only; never called from within its methods, except doWork. */
public interface LinkEvents {
    /** Once: the peer has accepted this engine, and paths may be opened. */
    void onOpened();

    /** The peer requests a read; false when too many are pending. The payload is valid during the call only. */
    boolean onAsked(MemorySegment payload);

    /** Once: the peer cannot be reached any more. Its paths are still open, and must be closed before the link. */
    void onLost(TransferFault fault, String detail);
}
