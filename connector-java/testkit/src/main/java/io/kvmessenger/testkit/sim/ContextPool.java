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
 * Where a simulated engine keeps the context rows of its transfers: an array for each kind, and for each request one
 * slot in all of them. A freed slot may be reused immediately.
 */
public final class ContextPool {
    private static final int SLOT_COUNT = 128;
    private static final int STRIDE_BYTES = 8;
    /** Content of a row that was never written. */
    public static final byte SCRIBBLE = 0x55;

    private final ContextKinds kinds;
    /** By kind. */
    private final List<MemorySegment> memories;

    private final TreeSet<Integer> free = new TreeSet<>();

    /** @param onRequestCount how many of the kinds, from the first on, go only on request */
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

    /** The slot that a byte of a kind's array belongs to. */
    public static int slotOf(long offset) {
        return (int) (offset / STRIDE_BYTES);
    }

    public static int offsetOf(int slot) {
        return slot * STRIDE_BYTES;
    }

    public static int rowBytes(int kind) {
        return 3 + kind;
    }

    /** The expected content of a row of a prompt with a single request. */
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

    /** Takes the lowest free slot, so that slots are reused soon; {@link ContextSlots#NO_SLOT} if there are no rows. */
    int take() {
        return memories.isEmpty() ? ContextSlots.NO_SLOT : free.pollFirst();
    }

    /** Takes a slot for these rows; {@link ContextSlots#NO_SLOT} if there are none. */
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
