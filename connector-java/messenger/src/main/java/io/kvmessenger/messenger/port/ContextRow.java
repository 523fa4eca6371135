package io.kvmessenger.messenger.port;

import io.kvmessenger.specdecode.ContextKinds;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.Region;
import java.util.List;

/**
 * One kind of row that goes with a transfer beside its KV, and where this side keeps its rows. A value.
 *
 * <p>A row is written when all KV of its transfer has left, and counted in the same window, so a transfer that has arrived
 * has its rows.
 *
 * @param region where the rows lie; nothing else lies in it
 */
public record ContextRow(ContextSlots slots, Region region) {
    /** Their kinds, in their order. */
    public static ContextKinds kinds(List<ContextRow> rows) {
        return new ContextKinds(rows.stream().map(row -> row.slots.kind()).toList());
    }
}
