package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.TransferFault;

/** What happens to an {@link OutboundLink}. Worker only; never called from within its methods but doWork. */
public interface LinkEvents {
    /** Once: the peer knows this engine, paths may be opened. */
    void onOpened();

    /** Once: the peer can be reached no more. Its paths are still open: to be closed before the link is. */
    void onLost(TransferFault fault, String detail);
}
