package io.kvmessenger.transfer.libfabric;

import io.kvmessenger.foreign.FabricLayout;
import java.lang.foreign.Arena;

/**
 * Memory that providers keep what they need of a write in, from its begin to its completion; its address says which write it was.
 *
 * <p>Worker only. Allocates nothing once made.
 */
final class WriteContexts {
    /** No post is called that. */
    private static final long FREE = Long.MIN_VALUE;

    private final Arena arena = Arena.ofConfined();
    private final long base;
    private final long[] postIds;
    private final int[] free;
    private int freeCount;

    WriteContexts(int count) {
        base = arena.allocate(count * FabricLayout.CONTEXT_SIZE_BYTES, FabricLayout.CONTEXT_SIZE_BYTES)
                .address();
        postIds = new long[count];
        free = new int[count];
        for (freeCount = 0; freeCount < count; freeCount++) {
            free[freeCount] = freeCount;
            postIds[freeCount] = FREE;
        }
    }

    boolean hasFree() {
        return freeCount > 0;
    }

    boolean areInUse() {
        return freeCount < free.length;
    }

    /** The address for the next write, once there is a free one; its again until it is taken. */
    long next() {
        return base + free[freeCount - 1] * FabricLayout.CONTEXT_SIZE_BYTES;
    }

    /** The write has begun. */
    void take(long postId) {
        postIds[free[--freeCount]] = postId;
    }

    /** Whether a write is under way whose address this is: a provider may say anything. */
    boolean isUnderWay(long address) {
        long offset = address - base;
        return offset >= 0
                && offset < postIds.length * FabricLayout.CONTEXT_SIZE_BYTES
                && offset % FabricLayout.CONTEXT_SIZE_BYTES == 0
                && postIds[(int) (offset / FabricLayout.CONTEXT_SIZE_BYTES)] != FREE;
    }

    /** The write at the address, which is under way, has completed; returns its post. */
    long release(long address) {
        int context = (int) ((address - base) / FabricLayout.CONTEXT_SIZE_BYTES);
        long postId = postIds[context];
        postIds[context] = FREE;
        free[freeCount++] = context;
        return postId;
    }

    /** No write is under way any more. */
    void close() {
        arena.close();
    }
}
