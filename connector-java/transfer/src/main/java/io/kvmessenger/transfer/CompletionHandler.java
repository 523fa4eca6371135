package io.kvmessenger.transfer;

import java.lang.foreign.MemorySegment;

/**
 * Receives what happened, on the thread that polls. Implementations record and return; they act in their next tick.
 */
public interface CompletionHandler {
    /** The source of the request may be reused. Says nothing about the target; of a request to a group, about none of them. */
    void onWriteCompleted(long cookie);

    /** The request will not complete, and no more of its bytes will be sent; some may have been. */
    void onWriteFailed(long cookie, TransferFault fault, String detail);

    /**
     * A member's part of a request to a group failed; the others' are not touched. {@link #onWriteFailed} follows for the request,
     * once all its parts have ended. Empty unless a user of groups has to know of each member.
     */
    default void onMemberFailed(long cookie, Peer member, TransferFault fault, String detail) {}

    /** The window's expected weight has arrived and its payload is visible. */
    void onWindowFilled(long cookie);

    /** More than expected arrived: a protocol error of the peer; the window's content must not be trusted. */
    void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight);

    /** All pages of the read are in place and visible. Empty unless a user reads. */
    default void onReadCompleted(long cookie) {}

    /** The read will not complete, and nothing of it lands any more; some of its pages may have been written, or partly. */
    default void onReadFailed(long cookie, TransferFault fault, String detail) {}

    /** Nothing is read from a closed {@link ReadWindow} any more. Empty unless a user opens some. */
    default void onReadWindowClosed(long cookie) {}

    /** Writes to the peer may be submitted. Again after it was lost and is reached by another transport. */
    void onPeerReady(Peer peer);

    /** The peer cannot be written to any more; requests that were under way fail. */
    void onPeerLost(Peer peer, TransferFault fault, String detail);

    /** All data paths of the admitted peer are gone: it broke them, or {@code revoke} did. None can write any more. */
    void onAdmissionClosed(Admission admission, String detail);

    /** A peer's write was refused by this engine before a byte landed; its data path was closed. */
    void onWriteRefused(Admission admission, String detail);

    /** A small message; the segment is valid during the call only. */
    void onMessage(Admission from, MemorySegment message);
}
