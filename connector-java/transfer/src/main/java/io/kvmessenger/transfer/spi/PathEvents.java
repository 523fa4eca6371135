package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.TransferFault;

/** What happens to the {@link OutboundPaths} of one domain to one peer. Worker only; nothing after onFailed. */
public interface PathEvents extends CompletionSink {
    /** Once: the peer takes writes this way. */
    void onReady();

    /**
     * Once: all is closed already, and nothing is written any more. What was posted to a path that was not told as lost may
     * have arrived or not.
     */
    void onFailed(TransferFault fault, String detail);

    /** From now on the path takes posts. */
    void onPathOpened(Endpoint path);

    /**
     * The path is closed, its last {@link #onSent} was told: nothing else that was posted to it can land or be counted any
     * more.
     */
    void onPathLost(Endpoint path);
}
