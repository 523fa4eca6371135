package io.kvmessenger.messenger.wire;

import io.kvmessenger.messenger.port.ContextRow;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.util.List;
import java.util.stream.Collectors;

/** One kind of context row as the other side may write it. A value, to and from its wire form. */
public record PeerContextRow(String name, RegionDescriptor region, long strideBytes, int rowBytes, int rowCount) {
    public static PeerContextRow of(ContextRow row) {
        return new PeerContextRow(
                row.name(), row.region().descriptor(), row.strideBytes(), row.rowBytes(), row.rowCount());
    }

    public static void encode(Attach.Builder wire, List<PeerContextRow> rows) {
        for (PeerContextRow row : rows) {
            wire.addContext(Attach.ContextRow.newBuilder()
                    .setName(row.name)
                    .setRegion(AttachWire.encode(row.region))
                    .setStrideBytes(row.strideBytes)
                    .setRowBytes(row.rowBytes)
                    .setRowCount(row.rowCount));
        }
    }

    /** @throws IllegalArgumentException when a row would lie outside its region */
    public static List<PeerContextRow> decode(Attach wire) {
        List<PeerContextRow> rows = wire.getContextList().stream()
                .map(row -> new PeerContextRow(
                        row.getName(),
                        AttachWire.decode(row.getRegion()),
                        row.getStrideBytes(),
                        row.getRowBytes(),
                        row.getRowCount()))
                .toList();
        for (PeerContextRow row : rows) {
            if (!row.liesInItsRegion()) {
                throw new IllegalArgumentException("context row " + row.name
                        + ", whose rows do not lie in its region of " + row.region.lengthBytes() + " bytes");
            }
        }
        return rows;
    }

    /** Which bytes of the kind's region one slot takes. */
    public WindowArea.Part part(int slot) {
        return new WindowArea.Part(region, WindowRanges.of(new long[] {slot * strideBytes}, new long[] {rowBytes}));
    }

    /** Divides where a peer's numbers, multiplied, could overflow. */
    private boolean liesInItsRegion() {
        return rowBytes >= 1
                && rowCount >= 1
                && strideBytes >= rowBytes
                && region.lengthBytes() >= rowBytes
                && rowCount - 1 <= (region.lengthBytes() - rowBytes) / strideBytes;
    }

    public static boolean holds(List<PeerContextRow> rows, int slot) {
        return slot == ContextRow.NO_SLOT
                || (!rows.isEmpty() && slot >= 0 && rows.stream().allMatch(row -> slot < row.rowCount));
    }

    public static String describe(List<PeerContextRow> rows) {
        return rows.stream()
                .map(row -> row.name + " of " + row.rowBytes + " bytes")
                .collect(Collectors.joining(", "));
    }
}
