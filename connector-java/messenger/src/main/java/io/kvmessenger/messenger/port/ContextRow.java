package io.kvmessenger.messenger.port;

import io.kvmessenger.transfer.Region;

/**
 * One kind of row that goes with a transfer beside its KV, such as the first token and its probability: an array of
 * equal rows, one for each slot that the engine gives to a request. A value.
 *
 * <p>Both sides name the same kinds in the same order. A row is written when all KV of its transfer has left, and counted
 * in the same window, so a transfer that has arrived has its rows.
 *
 * @param region where the rows lie; nothing else lies in it
 */
public record ContextRow(String name, Region region, long strideBytes, int rowBytes, int rowCount) {
    /** The slot of a request without rows. */
    public static final int NO_SLOT = -1;

    public ContextRow {
        if (name.isEmpty() || rowBytes < 1 || strideBytes < rowBytes || rowCount < 1) {
            throw new IllegalArgumentException("context row \"" + name + "\" has " + rowCount + " rows of " + rowBytes
                    + " bytes at a stride of " + strideBytes
                    + ", expected a name, at least one row, and a stride of at least a row");
        }
    }
}
