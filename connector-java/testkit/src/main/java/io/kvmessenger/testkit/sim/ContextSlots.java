package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.ContextRow;
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
public final class ContextSlots {
    private static final int SLOT_COUNT = 128;
    private static final int STRIDE_BYTES = 8;
    private static final byte SCRIBBLE = 0x55;

    /** By kind. */
    private final List<MemorySegment> memories;

    private final TreeSet<Integer> free = new TreeSet<>();

    ContextSlots(int kindCount) {
        memories = IntStream.range(0, kindCount)
                .mapToObj(kind -> Arena.ofAuto().allocate((long) SLOT_COUNT * STRIDE_BYTES))
                .toList();
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

    List<ContextRow> describe(List<Region> regions) {
        return IntStream.range(0, regions.size())
                .mapToObj(kind ->
                        new ContextRow("kind-" + kind, regions.get(kind), STRIDE_BYTES, rowBytes(kind), SLOT_COUNT))
                .toList();
    }

    /** The lowest free one, so that slots are used again soon; {@link ContextRow#NO_SLOT} where there are no rows. */
    int take() {
        return memories.isEmpty() ? ContextRow.NO_SLOT : free.pollFirst();
    }

    void write(int slot, String name) {
        for (int kind = 0; kind < memories.size(); kind++) {
            for (int b = 0; b < rowBytes(kind); b++) {
                memories.get(kind).set(ValueLayout.JAVA_BYTE, offsetOf(slot) + b, byteOf(name, kind, b));
            }
        }
    }

    void giveBack(int slot) {
        if (slot != ContextRow.NO_SLOT) {
            memories.forEach(
                    memory -> memory.asSlice(offsetOf(slot), STRIDE_BYTES).fill(SCRIBBLE));
            free.add(slot);
        }
    }
}
