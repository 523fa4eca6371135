package io.kvmessenger.messenger.wire;

import io.kvmessenger.messenger.port.ContextRow;
import io.kvmessenger.specdecode.ContextChoice;
import io.kvmessenger.specdecode.ContextKind;
import io.kvmessenger.specdecode.ContextKind.Sending;
import io.kvmessenger.specdecode.ContextKinds;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.util.Arrays;
import java.util.List;

/** One kind of context row of a decoder, as the prefiller may write it. A value, to and from its wire form. */
public record PeerContextRow(ContextSlots slots, RegionDescriptor region) {
    public static PeerContextRow of(ContextRow row) {
        return new PeerContextRow(row.slots(), row.region().descriptor());
    }

    public static void encode(Attach.Builder wire, List<PeerContextRow> rows) {
        for (PeerContextRow row : rows) {
            ContextKind kind = row.slots.kind();
            wire.addContext(Attach.ContextRow.newBuilder()
                    .setName(kind.name())
                    .setRegion(AttachWire.encode(row.region))
                    .setStrideBytes(row.slots.strideBytes())
                    .setRowBytes(kind.rowBytes())
                    .setRowCount(row.slots.slotCount())
                    .setOnRequest(!kind.always()));
        }
    }

    /** @throws IllegalArgumentException when a row would lie outside its region */
    public static List<PeerContextRow> decode(Attach wire) {
        return wire.getContextList().stream().map(PeerContextRow::decode).toList();
    }

    private static PeerContextRow decode(Attach.ContextRow wire) {
        ContextKind kind = new ContextKind(
                wire.getName(), wire.getRowBytes(), wire.getOnRequest() ? Sending.ON_REQUEST : Sending.ALWAYS);
        ContextSlots slots = new ContextSlots(kind, wire.getStrideBytes(), wire.getRowCount());
        RegionDescriptor region = AttachWire.decode(wire.getRegion());
        if (!slots.fitIn(region.lengthBytes())) {
            throw new IllegalArgumentException("context row " + kind.name()
                    + ", whose rows do not lie in its region of " + region.lengthBytes() + " bytes");
        }
        return new PeerContextRow(slots, region);
    }

    /** The kinds of these rows, in their order. */
    public static ContextKinds kinds(List<PeerContextRow> rows) {
        return new ContextKinds(rows.stream().map(row -> row.slots.kind()).toList());
    }

    /** Why the rows of a slot cannot go with a transfer, as the end of a sentence; empty when they can. */
    public static String misfit(List<PeerContextRow> rows, ContextChoice choice, int slot) {
        boolean needed = !choice.isEmpty();
        boolean fits = needed
                ? Arrays.stream(choice.positions())
                        .allMatch(position -> rows.get(position).slots.has(slot))
                : slot == ContextSlots.NO_SLOT;
        return fits
                ? ""
                : "context slot " + slot + " for " + choice.count() + " of the rows ["
                        + kinds(rows).describe() + "]";
    }

    /**
     * The bytes that the chosen rows of a slot occupy.
     *
     * @throws IllegalArgumentException when the slot is outside the rows
     */
    public static List<WindowArea.Part> parts(List<PeerContextRow> rows, ContextChoice choice, int slot) {
        String misfit = misfit(rows, choice, slot);
        if (!misfit.isEmpty()) {
            throw new IllegalArgumentException(misfit);
        }
        return Arrays.stream(choice.positions())
                .mapToObj(position -> rows.get(position).part(slot))
                .toList();
    }

    private WindowArea.Part part(int slot) {
        return new WindowArea.Part(region, WindowRanges.of(new long[] {slots.offsetBytes(slot)}, new long[] {
            slots.kind().rowBytes()
        }));
    }
}
