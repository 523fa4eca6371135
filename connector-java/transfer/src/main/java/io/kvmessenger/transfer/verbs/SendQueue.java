package io.kvmessenger.transfer.verbs;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.VerbsApi;
import io.kvmessenger.foreign.VerbsLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * This side's writes through a queue pair: posts, each a chain of writes of which only the last carries an immediate
 * and is signalled.
 *
 * <p>Worker only. A reliable connection executes and completes requests in order, so the post that completes is always
 * the oldest. Allocates nothing after construction.
 */
final class SendQueue {
    /** Limit on the writes of one post. */
    static final int CHAIN_MAX = 32;

    private final QueuePair pair;
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment chain = arena.allocate(CHAIN_MAX * VerbsLayout.SEND_WR_SIZE_BYTES, 8);
    private final MemorySegment memory = arena.allocate(CHAIN_MAX * VerbsLayout.SGE_SIZE_BYTES, 8);
    private final MemorySegment refused = arena.allocate(JAVA_LONG);
    /** By the post's number, modulo the depth. */
    private final long[] postIds;

    private final int[] writeCounts;
    private final long[] lengthsBytes;
    private final int depth;
    private int used;
    private long heldBytes;
    private long posted;
    private long completed;

    /** @param depth number of writes that may be in flight */
    SendQueue(QueuePair pair, int depth) {
        this.pair = pair;
        this.depth = depth;
        postIds = new long[depth];
        writeCounts = new int[depth];
        lengthsBytes = new long[depth];
        for (int i = 0; i < CHAIN_MAX; i++) {
            long at = i * VerbsLayout.SEND_WR_SIZE_BYTES;
            chain.set(JAVA_LONG, at + VerbsLayout.SEND_WR_SG_LIST, memory.address() + i * VerbsLayout.SGE_SIZE_BYTES);
        }
    }

    /** Number of writes that a chain may have now. */
    int room() {
        return Math.min(CHAIN_MAX, depth - used);
    }

    long heldBytes() {
        return heldBytes;
    }

    boolean isInUse() {
        return completed < posted;
    }

    long posted() {
        return posted;
    }

    long completed() {
        return completed;
    }

    /** Describes write {@code i} of the next post. */
    void set(int i, long source, long lengthBytes, int localKey, long target, int remoteKey) {
        long part = i * VerbsLayout.SGE_SIZE_BYTES;
        memory.set(JAVA_LONG, part + VerbsLayout.SGE_ADDR, source);
        memory.set(JAVA_INT, part + VerbsLayout.SGE_LENGTH, (int) lengthBytes);
        memory.set(JAVA_INT, part + VerbsLayout.SGE_LKEY, localKey);
        long at = i * VerbsLayout.SEND_WR_SIZE_BYTES;
        chain.set(JAVA_INT, at + VerbsLayout.SEND_WR_NUM_SGE, 1);
        chain.set(JAVA_LONG, at + VerbsLayout.SEND_WR_REMOTE_ADDR, target);
        chain.set(JAVA_INT, at + VerbsLayout.SEND_WR_RKEY, remoteKey);
        link(i);
    }

    private void link(int i) {
        long at = i * VerbsLayout.SEND_WR_SIZE_BYTES;
        chain.set(JAVA_LONG, at + VerbsLayout.SEND_WR_NEXT, chain.address() + at + VerbsLayout.SEND_WR_SIZE_BYTES);
        chain.set(JAVA_INT, at + VerbsLayout.SEND_WR_OPCODE, VerbsApi.IBV_WR_RDMA_WRITE);
        chain.set(JAVA_INT, at + VerbsLayout.SEND_WR_SEND_FLAGS, 0);
    }

    /** Posts an immediate without memory, so without a key check. Returns as {@link #post} does. */
    int post(int imm, long postId) {
        set(0, 0, 0, 0, 0, 0);
        chain.set(JAVA_INT, VerbsLayout.SEND_WR_NUM_SGE, 0);
        return post(1, 0, imm, postId);
    }

    /**
     * Posts the first {@code writeCount} writes that were set.
     *
     * @param lengthBytes of all of them
     * @return 0; or {@code -errno}: {@code -ENOMEM} when nothing was accepted for lack of room, {@code -EIO} when only
     *     a part was
     */
    int post(int writeCount, long lengthBytes, int imm, long postId) {
        long last = (writeCount - 1) * VerbsLayout.SEND_WR_SIZE_BYTES;
        chain.set(JAVA_LONG, last + VerbsLayout.SEND_WR_NEXT, 0);
        chain.set(JAVA_LONG, last + VerbsLayout.SEND_WR_WR_ID, posted);
        chain.set(JAVA_INT, last + VerbsLayout.SEND_WR_OPCODE, VerbsApi.IBV_WR_RDMA_WRITE_WITH_IMM);
        chain.set(JAVA_INT, last + VerbsLayout.SEND_WR_SEND_FLAGS, VerbsApi.IBV_SEND_SIGNALED);
        chain.set(QueuePair.NETWORK_INT, last + VerbsLayout.SEND_WR_IMM_DATA, imm);
        int result = pair.postSend(chain.address(), refused);
        if (result < 0) {
            return refused.get(JAVA_LONG, 0) == chain.address() ? result : -Errno.EIO;
        }
        int slot = (int) (posted % depth);
        postIds[slot] = postId;
        writeCounts[slot] = writeCount;
        lengthsBytes[slot] = lengthBytes;
        used += writeCount;
        heldBytes += lengthBytes;
        posted++;
        return 0;
    }

    /** The oldest post has completed; returns its id. */
    long complete() {
        int slot = (int) (completed % depth);
        used -= writeCounts[slot];
        heldBytes -= lengthsBytes[slot];
        completed++;
        return postIds[slot];
    }

    /** Releases the memory; the queue pair is closed. */
    void close() {
        arena.close();
    }
}
