package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.ContextRow;
import io.kvmessenger.specdecode.ContextChoice;
import io.kvmessenger.specdecode.ContextKind;
import io.kvmessenger.specdecode.ContextKind.Sending;
import io.kvmessenger.specdecode.ContextKinds;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.Region;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.TreeSet;
import java.util.stream.IntStream;

/**
 * Where a simulated engine keeps the rows that go with its transfers beside their KV: an array for each kind, and a slot in
 * all of them for each request. A slot given back is another request's at once.
 */
public final class ContextPool {
    private static final int SLOT_COUNT = 128;
    private static final int STRIDE_BYTES = 8;
    /** What is in a row that nothing was written to. */
    public static final byte SCRIBBLE = 0x55;

    private final ContextKinds kinds;
    /** By kind. */
    private final List<MemorySegment> memories;

    private final TreeSet<Integer> free = new TreeSet<>();

    /** @param onRequestCount how many of the kinds go with some transfers only: the first ones */
    ContextPool(int kindCount, int onRequestCount) {
        kinds = new ContextKinds(IntStream.range(0, kindCount)
                .mapToObj(kind -> new ContextKind(
                        "kind-" + kind, rowBytes(kind), kind < onRequestCount ? Sending.ON_REQUEST : Sending.ALWAYS))
                .toList());
        memories = IntStream.range(0, kindCount)
                .mapToObj(kind -> Arena.ofAuto().allocate((long) SLOT_COUNT * STRIDE_BYTES))
                .toList();
        memories.forEach(memory -> memory.fill(SCRIBBLE));
        IntStream.range(0, SLOT_COUNT).forEach(free::add);
    }

    /** Which slot a byte of a kind's array lies in. */
    public static int slotOf(long offset) {
        return (int) (offset / STRIDE_BYTES);
    }

    public static int offsetOf(int slot) {
        return slot * STRIDE_BYTES;
    }

    public static int rowBytes(int kind) {
        return 3 + kind;
    }

    /** What the rows of a prompt's only request hold. */
    public static byte byteOf(String name, int kind, int byteInRow) {
        int mixed = (name.hashCode() * 0x9E3779B9 + kind * 31 + byteInRow + 1) * 0x85EBCA6B;
        return (byte) (mixed >>> 13);
    }

    List<MemorySegment> memories() {
        return memories;
    }

    ContextKinds kinds() {
        return kinds;
    }

    List<ContextRow> describe(List<Region> regions) {
        return IntStream.range(0, regions.size())
                .mapToObj(kind -> new ContextRow(
                        new ContextSlots(kinds.kinds().get(kind), STRIDE_BYTES, SLOT_COUNT), regions.get(kind)))
                .toList();
    }

    /** The lowest free one, so that slots are used again soon; {@link ContextSlots#NO_SLOT} where there are no rows. */
    int take() {
        return memories.isEmpty() ? ContextSlots.NO_SLOT : free.pollFirst();
    }

    /** A slot for these rows; {@link ContextSlots#NO_SLOT} where there are none. */
    int takeFor(ContextChoice choice) {
        return choice.isEmpty() ? ContextSlots.NO_SLOT : take();
    }

    void write(int slot, String name) {
        for (int kind = 0; kind < memories.size(); kind++) {
            for (int b = 0; b < rowBytes(kind); b++) {
                memories.get(kind).set(ValueLayout.JAVA_BYTE, offsetOf(slot) + b, byteOf(name, kind, b));
            }
        }
    }

    void giveBack(int slot) {
        if (slot != ContextSlots.NO_SLOT) {
            memories.forEach(
                    memory -> memory.asSlice(offsetOf(slot), STRIDE_BYTES).fill(SCRIBBLE));
            free.add(slot);
        }
    }
}
