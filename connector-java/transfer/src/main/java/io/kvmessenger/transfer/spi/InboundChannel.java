package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.TransferFault;

/** The target's end of a {@link PeerChannel}, and the events of the paths. Worker only. */
public interface InboundChannel extends PeerChannel {
    /**
     * Whether the end of the peer's process will be seen. If not, only its socket's end is, which comes first: a device
     * still executes then what the process has queued.
     */
    default boolean watchesProcess() {
        return false;
    }

    /** Once: the peer may write from now on. */
    void onReady();

    /** The paths have ended by themselves. */
    void onOver(String detail);

    /** The peer has broken a rule: everything that it has here ends. */
    void dismiss(TransferFault fault, String detail);

    /** Working on the paths failed by an error of this engine. */
    void onError(Throwable error);
}
