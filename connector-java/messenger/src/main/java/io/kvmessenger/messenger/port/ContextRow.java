package io.kvmessenger.messenger.port;

import io.kvmessenger.specdecode.ContextKinds;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.Region;
import java.util.List;

/**
 * One kind of row that a transfer carries besides its KV, and where this side keeps its rows. A value.
 *
 * <p>A row is written after all KV of its transfer has left and is counted in the same window, so a transfer that has
 * arrived has its rows.
 *
 * @param region holds the rows of this kind and nothing else
 */
public record ContextRow(ContextSlots slots, Region region) {
    /** The kinds of these rows, in their order. */
    public static ContextKinds kinds(List<ContextRow> rows) {
        return new ContextKinds(rows.stream().map(row -> row.slots.kind()).toList());
    }
}
