package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.TransferFault;

/** The events of the {@link OutboundPaths} of one domain to one peer. Worker only; none follows onFailed. */
public interface PathEvents extends CompletionSink {
    /** Once: the paths accept writes. */
    void onReady();

    /**
     * Once: all paths are closed already, and nothing is written any more. Whether posts to a path that was not
     * reported as lost have arrived is unknown.
     */
    void onFailed(TransferFault fault, String detail);

    /** From now on the path accepts posts. */
    void onPathOpened(Endpoint path);

    /**
     * The path is closed and its last {@link #onSent} was reported: no other post to it can land or be counted any
     * more.
     */
    void onPathLost(Endpoint path);
}
