package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.TransferFault;

/** What happens to an {@link OutboundLink}. Worker only; called at most once each, and nothing after onLost. */
public interface OutboundEvents {
    void onReady();

    /** The link is closed already. */
    void onLost(TransferFault fault, String detail);
}
