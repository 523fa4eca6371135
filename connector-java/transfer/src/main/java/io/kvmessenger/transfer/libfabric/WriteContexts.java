package io.kvmessenger.transfer.libfabric;

import io.kvmessenger.foreign.FabricLayout;
import java.lang.foreign.Arena;

/**
 * Memory in which providers keep their state of a write from its begin to its completion; its address identifies the
 * write.
 *
 * <p>Worker only. Allocates nothing after construction.
 */
final class WriteContexts {
    /** Never the id of a post. */
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

    /** The address for the next write, if one is free; the same until it is taken. */
    long next() {
        return base + free[freeCount - 1] * FabricLayout.CONTEXT_SIZE_BYTES;
    }

    void take(long postId) {
        postIds[free[--freeCount]] = postId;
    }

    /** Whether this is the address of a write in flight; providers' values are not trusted. */
    boolean isUnderWay(long address) {
        long offset = address - base;
        return offset >= 0
                && offset < postIds.length * FabricLayout.CONTEXT_SIZE_BYTES
                && offset % FabricLayout.CONTEXT_SIZE_BYTES == 0
                && postIds[(int) (offset / FabricLayout.CONTEXT_SIZE_BYTES)] != FREE;
    }

    /** The write in flight at the address has completed; returns its post. */
    long release(long address) {
        int context = (int) ((address - base) / FabricLayout.CONTEXT_SIZE_BYTES);
        long postId = postIds[context];
        postIds[context] = FREE;
        free[freeCount++] = context;
        return postId;
    }

    /** Releases the memory: no write is in flight any more. */
    void close() {
        arena.close();
    }
}
