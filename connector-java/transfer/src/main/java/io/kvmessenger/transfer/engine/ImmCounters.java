package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Imm;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * How much has arrived for each open immediate, and how much is expected. Primitive arrays indexed by slot.
 *
 * <p>The messenger's thread reserves, publishes, retires and frees slots; the worker counts arrivals. A slot that was
 * retired without proof that nothing can follow stays out of use until it is freed. Slots are reused in turn, each time
 * with the next generation.
 */
final class ImmCounters {
    /** The arrival was counted, and more is expected. */
    static final int COUNTED = 0;
    /** The arrival completed the expectation. */
    static final int FILLED = 1;
    /** More has arrived than was expected; said once for each use of a slot. */
    static final int OVERSHOT = 2;
    /** No open window has this slot and generation. */
    static final int STRAY = 3;

    /** Never given out, so that {@link Imm#NONE} names nothing. */
    private static final int FIRST_SLOT = 1;

    private static final int OPEN_BIT = 1;

    /** Slot and generation with the lowest bit set while open, 0 while not. */
    private final AtomicIntegerArray live = new AtomicIntegerArray(Imm.SLOT_COUNT_MAX);

    private final AtomicLongArray arrived = new AtomicLongArray(Imm.SLOT_COUNT_MAX);
    private final long[] expected = new long[Imm.SLOT_COUNT_MAX];
    private final boolean[] overshot = new boolean[Imm.SLOT_COUNT_MAX];

    private final int[] generations = new int[Imm.SLOT_COUNT_MAX];
    private final int[] free = new int[Imm.SLOT_COUNT_MAX];
    private int freeFrom;
    private int freeCount;

    ImmCounters() {
        for (int slot = FIRST_SLOT; slot < Imm.SLOT_COUNT_MAX; slot++) {
            free[freeCount++] = slot;
        }
    }

    /** Takes a slot for a new window; arrivals are strays until it is published. {@link Imm#NONE} when none is free. */
    int reserve(long expectedWeight) {
        if (freeCount == 0) {
            return Imm.NONE;
        }
        int slot = free[freeFrom];
        freeFrom = (freeFrom + 1) % free.length;
        freeCount--;
        arrived.setPlain(slot, 0);
        expected[slot] = expectedWeight;
        overshot[slot] = false;
        return Imm.of(slot, generations[slot]);
    }

    /** From now on arrivals count; everything written before is visible to the worker that counts them. */
    void publish(int imm) {
        live.setRelease(Imm.slot(imm), imm | OPEN_BIT);
    }

    /** Worker: whether arrivals for this imm count. */
    boolean isOpen(int imm) {
        return live.get(Imm.slot(imm)) == ((imm & ~Imm.WEIGHT_MAX) | OPEN_BIT);
    }

    /** Worker: counts; the caller has made sure that the payload is visible. */
    int arrive(int imm, long weight) {
        if (!isOpen(imm)) {
            return STRAY;
        }
        int slot = Imm.slot(imm);
        long before = arrived.getPlain(slot);
        long after = before + weight;
        arrived.setRelease(slot, after);
        if (after < expected[slot]) {
            return COUNTED;
        }
        if (after == expected[slot]) {
            return FILLED;
        }
        boolean first = !overshot[slot];
        overshot[slot] = true;
        return first ? OVERSHOT : COUNTED;
    }

    /** Ends the use of a slot; later arrivals are strays. It is not free yet. */
    void retire(int imm) {
        live.set(Imm.slot(imm), 0);
    }

    /** Nothing can arrive for the imm any more: the slot may be used again, with the next generation. */
    void free(int imm) {
        int slot = Imm.slot(imm);
        generations[slot] = (generations[slot] + 1) % Imm.GENERATION_COUNT;
        free[(freeFrom + freeCount++) % free.length] = slot;
    }

    long arrivedWeight(int imm) {
        return arrived.getAcquire(Imm.slot(imm));
    }
}
