package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.TransferFault;

/**
 * What happens to an {@link OutboundLink} and on its paths. Worker only; never called from within {@link Endpoint#post},
 * and nothing after onLost.
 */
public interface LinkEvents {
    /** Once: the peer takes writes. */
    void onReady();

    /** Once: the link is closed already, with all its paths. */
    void onLost(TransferFault fault, String detail);

    /** From now on the path takes posts. */
    void onPathOpened(Endpoint path);

    /**
     * The path is closed, its last {@link #onSent} was told: nothing else that was posted to it can land or be counted any
     * more.
     */
    void onPathLost(Endpoint path);

    /** What was posted under this id needs its source no more. */
    void onSent(long postId);
}
