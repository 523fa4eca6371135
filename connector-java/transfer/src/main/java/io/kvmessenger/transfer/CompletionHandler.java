package io.kvmessenger.transfer;

import java.lang.foreign.MemorySegment;

/**
 * Receives completions and events, on the thread that polls. Implementations record and return; they act in their next
 * duty cycle.
 */
public interface CompletionHandler {
    /** The request's source may be reused. Says nothing about the target; for a group, about none of the targets. */
    void onWriteCompleted(long cookie);

    /** The request will not complete, and no more of its bytes will be sent; some may have been. */
    void onWriteFailed(long cookie, TransferFault fault, String detail);

    /**
     * A member's part of a request to a group failed; the other members' parts are not affected. {@link #onWriteFailed}
     * follows for the request once all its parts have ended. By default does nothing: for users of groups that need to
     * know each member's result.
     */
    default void onMemberFailed(long cookie, Peer member, TransferFault fault, String detail) {}

    /** The window's expected weight has arrived and its payload is visible. */
    void onWindowFilled(long cookie);

    /** More than expected arrived: a protocol error of the peer; the window's content must not be trusted. */
    void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight);

    /** All pages of the read are in place and visible. By default does nothing, for users that never read. */
    default void onReadCompleted(long cookie) {}

    /** The read will not complete, and nothing of it lands any more; some pages may have been written, even in part. */
    default void onReadFailed(long cookie, TransferFault fault, String detail) {}

    /** Nothing is read from a closed {@link ReadWindow} any more. By default does nothing, for users that open none. */
    default void onReadWindowClosed(long cookie) {}

    /** Writes to the peer may be submitted. Called again when a lost peer is reached by another transport. */
    void onPeerReady(Peer peer);

    /** The peer cannot be written to any more; its requests in flight fail. */
    void onPeerLost(Peer peer, TransferFault fault, String detail);

    /** All data paths of the admitted peer are gone, closed by it or by {@code revoke}: nothing of it can land. */
    void onAdmissionClosed(Admission admission, String detail);

    /** A peer's write was refused by this engine before a byte landed; its data path was closed. */
    void onWriteRefused(Admission admission, String detail);

    /** A small message; the segment is valid during the call only. */
    void onMessage(Admission from, MemorySegment message);
}
