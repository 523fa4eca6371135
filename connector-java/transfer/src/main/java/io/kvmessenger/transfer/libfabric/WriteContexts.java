package io.kvmessenger.transfer.libfabric;

import io.kvmessenger.foreign.FabricLayout;
import java.lang.foreign.Arena;

/**
 * Memory that providers keep what they need of a write in, from its begin to its completion; its address says which write it was.
 *
 * <p>Worker only. Allocates nothing once made.
 */
final class WriteContexts {
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

    /** The write at the address has completed; returns its post. */
    long release(long address) {
        int context = (int) ((address - base) / FabricLayout.CONTEXT_SIZE_BYTES);
        free[freeCount++] = context;
        return postIds[context];
    }

    /** No write is under way any more. */
    void close() {
        arena.close();
    }
}
