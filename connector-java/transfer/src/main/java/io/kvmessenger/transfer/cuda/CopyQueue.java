package io.kvmessenger.transfer.cuda;

import io.kvmessenger.transfer.device.CopyStream;

/**
 * The copies of one device for one peer: each write's copies, followed by its immediate, which is due when the copies
 * are done.
 *
 * <p>Worker only. FIFO. Allocates nothing.
 */
final class CopyQueue {
    /** A power of two. */
    private static final int POSTS_MAX = 1 << 8;

    /** Limit on the bytes queued, which a closing path has to wait for. */
    private static final long BYTES_MAX = 64L << 20;

    private final CopyStream stream;
    private final long[] postIds = new long[POSTS_MAX];
    private final int[] imms = new int[POSTS_MAX];
    private final long[] lengths = new long[POSTS_MAX];
    private final long[] serials = new long[POSTS_MAX];
    private long head;
    private long marked;
    private long tail;
    private long queuedBytes;

    CopyQueue(CopyStream stream) {
        this.stream = stream;
    }

    CopyStream stream() {
        return stream;
    }

    boolean hasRoom() {
        return tail - head < POSTS_MAX && queuedBytes < BYTES_MAX;
    }

    boolean isEmpty() {
        return head == tail;
    }

    /** Records a write whose copies are on the stream. */
    void posted(long postId, int imm, long lengthBytes) {
        int at = slot(tail++);
        postIds[at] = postId;
        imms[at] = imm;
        lengths[at] = lengthBytes;
        queuedBytes += lengthBytes;
    }

    /** Sets a mark behind everything posted since the last one. */
    void mark() {
        if (marked == tail) {
            return;
        }
        long serial = stream.mark();
        while (marked < tail) {
            serials[slot(marked++)] = serial;
        }
    }

    /** Whether the bytes of the oldest write are in place. */
    boolean isHeadDone() {
        return head < marked && stream.isDone(serials[slot(head)]);
    }

    int headImm() {
        return imms[slot(head)];
    }

    long removeHead() {
        int at = slot(head++);
        queuedBytes -= lengths[at];
        return postIds[at];
    }

    /** Waits until none of its copies runs. */
    void close() {
        stream.close();
    }

    private static int slot(long position) {
        return (int) (position & (POSTS_MAX - 1));
    }
}
