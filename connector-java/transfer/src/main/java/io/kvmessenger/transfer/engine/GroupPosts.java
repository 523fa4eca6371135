package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.GroupRequest;
import io.kvmessenger.transfer.TransferFault;
import java.util.ArrayDeque;

/**
 * The requests to groups that have not ended: each is a write for every member, and ends with its last write.
 *
 * <p>Messenger's thread. A request without a fault allocates nothing. It selects no members and checks nothing.
 */
final class GroupPosts {
    static final int CAPACITY = 1 << 10;

    private static final int MEMBER_BITS = 16;

    private final long[] cookies = new long[CAPACITY];
    private final OutboundGroup[] groups = new OutboundGroup[CAPACITY];
    private final int[] partsLeft = new int[CAPACITY];
    private final int[] failedCounts = new int[CAPACITY];
    private final TransferFault[] faults = new TransferFault[CAPACITY];
    private final String[] details = new String[CAPACITY];
    private final int[] free = new int[CAPACITY];
    private int freeCount;
    /** Parts whose members were gone when they were submitted. */
    private final ArrayDeque<Long> unsent = new ArrayDeque<>();

    GroupPosts() {
        while (freeCount < CAPACITY) {
            free[freeCount] = freeCount;
            freeCount++;
        }
    }

    boolean hasRoom() {
        return freeCount > 0;
    }

    /** Queues a request that has passed all checks; returns the number of writes queued. */
    int begin(OutboundGroup group, GroupRequest request, long cookie) {
        int post = free[--freeCount];
        cookies[post] = cookie;
        groups[post] = group;
        partsLeft[post] = group.size();
        failedCounts[post] = 0;
        int queued = 0;
        for (int i = 0; i < group.size(); i++) {
            OutboundPeer member = group.member(i);
            long part = (long) post << MEMBER_BITS | i;
            if (member.isGone()) {
                unsent.add(part);
            } else {
                member.offer(request.part(i), part, WriteLedger.OF_GROUP);
                queued++;
            }
        }
        return queued;
    }

    /** Whether {@link #reportUnsent} has anything to report. */
    boolean hasUnsent() {
        return !unsent.isEmpty();
    }

    /** Ends up to {@code limit} parts whose members were gone when they were submitted; returns how many. */
    int reportUnsent(CompletionHandler handler, int limit) {
        int count = 0;
        while (count < limit && !unsent.isEmpty()) {
            onFailed(handler, unsent.remove(), TransferFault.PEER_CLOSED, "it was gone before");
            count++;
        }
        return count;
    }

    void onCompleted(CompletionHandler handler, long part) {
        end(handler, (int) (part >> MEMBER_BITS));
    }

    void onFailed(CompletionHandler handler, long part, TransferFault fault, String detail) {
        int post = (int) (part >> MEMBER_BITS);
        OutboundPeer member = groups[post].member((int) (part & (1 << MEMBER_BITS) - 1));
        if (failedCounts[post]++ == 0) {
            faults[post] = fault;
            details[post] = member.name() + ": " + detail;
        }
        handler.onMemberFailed(cookies[post], member, fault, detail);
        end(handler, post);
    }

    private void end(CompletionHandler handler, int post) {
        if (--partsLeft[post] > 0) {
            return;
        }
        OutboundGroup group = groups[post];
        TransferFault fault = faults[post];
        String detail = details[post];
        groups[post] = null;
        faults[post] = null;
        details[post] = null;
        free[freeCount++] = post;
        if (fault == null) {
            handler.onWriteCompleted(cookies[post]);
        } else {
            handler.onWriteFailed(
                    cookies[post],
                    fault,
                    failedCounts[post] + " of " + group.size() + " members of group " + group.name()
                            + " failed, the first: " + detail);
        }
    }
}
