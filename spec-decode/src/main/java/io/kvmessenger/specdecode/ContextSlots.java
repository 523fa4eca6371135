package io.kvmessenger.specdecode;

/**
 * Where one side keeps the rows of a kind: an array in a memory of its own, with a row for each slot. The engine
 * assigns a request one slot, valid for all kinds; the two sides of a transfer have independent slots. A value, which
 * may come from a peer: its numbers are validated before use.
 *
 * @param strideBytes distance from one row to the next
 */
public record ContextSlots(ContextKind kind, long strideBytes, int slotCount) {
    /** The slot of a request without rows. */
    public static final int NO_SLOT = -1;

    public ContextSlots {
        if (strideBytes < kind.rowBytes() || slotCount < 1) {
            throw new IllegalArgumentException("context row " + kind.name() + " has " + slotCount + " rows of "
                    + kind.rowBytes() + " bytes at a stride of " + strideBytes
                    + ", expected at least one row, and a stride of at least a row");
        }
    }

    /** With as many slots as the memory has whole strides. */
    public static ContextSlots in(ContextKind kind, long strideBytes, long memoryBytes) {
        long count = strideBytes < 1 ? 0 : memoryBytes / strideBytes;
        return new ContextSlots(kind, strideBytes, (int) Math.min(count, Integer.MAX_VALUE));
    }

    public boolean has(int slot) {
        return slot >= 0 && slot < slotCount;
    }

    public long offsetBytes(int slot) {
        return slot * strideBytes;
    }

    /** Whether all rows fit in a memory of that length. Divides, as a peer's numbers could overflow if multiplied. */
    public boolean fitIn(long memoryBytes) {
        return memoryBytes >= kind.rowBytes() && slotCount - 1 <= (memoryBytes - kind.rowBytes()) / strideBytes;
    }
}
