package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Imm;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * For each open immediate: the weight that has arrived and the weight expected. Primitive arrays indexed by slot.
 *
 * <p>The messenger's thread reserves, publishes, retires and frees slots; any worker counts arrivals. All workers add
 * to one word per slot, so exactly one of them sees the sum reach the expectation. A slot that was retired without
 * proof that nothing can follow stays out of use until it is freed. Slots are reused round-robin, each time with the
 * next generation.
 */
class ImmCounters {
    /** The arrival was counted, and more is expected. */
    static final int COUNTED = 0;
    /** The arrival completed the expectation. */
    static final int FILLED = 1;
    /** More has arrived than was expected; returned once for each use of a slot. */
    static final int OVERSHOT = 2;
    /** No open window has this slot and generation. */
    static final int STRAY = 3;

    /** Slot 0 is never assigned, so that {@link Imm#NONE} names no window. */
    private static final int FIRST_SLOT = 1;

    /** The low bits of a slot's state hold the arrived weight. */
    private static final int COUNT_BITS = 55;

    private static final long COUNT_MAX = (1L << COUNT_BITS) - 1;
    private static final long OPEN_BIT = 1L << 63;

    /** While open: the open bit, the generation and the arrived weight; else 0. One word, to change atomically. */
    private final AtomicLongArray states;

    private final long[] expected;
    private final int[] generations;
    private final int[] free;
    private final int generationCount;
    private int freeFrom;
    private int freeCount;

    /**
     * @param slotCount at most {@link Imm#SLOT_COUNT_MAX}; slot 0 is one of them
     * @param generationCount at most {@link Imm#GENERATION_COUNT}
     */
    ImmCounters(int slotCount, int generationCount) {
        states = new AtomicLongArray(slotCount);
        expected = new long[slotCount];
        generations = new int[slotCount];
        free = new int[slotCount];
        this.generationCount = generationCount;
        for (int slot = FIRST_SLOT; slot < slotCount; slot++) {
            free[freeCount++] = slot;
        }
    }

    /** Takes a slot for a new window; until published, arrivals are strays. {@link Imm#NONE} when none is free. */
    int reserve(long expectedWeight) {
        if (freeCount == 0) {
            return Imm.NONE;
        }
        int slot = free[freeFrom];
        freeFrom = (freeFrom + 1) % free.length;
        freeCount--;
        expected[slot] = expectedWeight;
        return Imm.of(slot, generations[slot]);
    }

    /** Begins to count arrivals; everything written before is visible to workers that count them. */
    void publish(int imm) {
        states.setRelease(Imm.slot(imm), opened(imm));
    }

    private static long opened(int imm) {
        return OPEN_BIT | (long) Imm.generation(imm) << COUNT_BITS;
    }

    /** Worker: whether arrivals for this imm count. */
    boolean isOpen(int imm) {
        int slot = Imm.slot(imm);
        return slot < states.length() && (states.get(slot) & ~COUNT_MAX) == opened(imm);
    }

    /**
     * Worker: counts an arrival; the caller ensures that the payload is visible. A slot that has been retired or reused
     * meanwhile is left unchanged.
     */
    int arrive(int imm, long weight) {
        int slot = Imm.slot(imm);
        long before;
        long after;
        long wanted;
        do {
            long seen = states.get(slot);
            if ((seen & ~COUNT_MAX) != opened(imm)) {
                return STRAY;
            }
            // Read before the exchange: when that succeeds it was still this window's.
            wanted = expected[slot];
            before = seen & COUNT_MAX;
            after = Math.min(before + weight, COUNT_MAX);
        } while (!states.compareAndSet(slot, opened(imm) | before, opened(imm) | after));
        if (after < wanted) {
            return COUNTED;
        }
        if (after == wanted) {
            return before < wanted ? FILLED : COUNTED;
        }
        return before <= wanted ? OVERSHOT : COUNTED;
    }

    /** Ends the use of a slot; later arrivals are strays. The slot is not free yet. Returns the arrived weight. */
    long retire(int imm) {
        return states.getAndSet(Imm.slot(imm), 0) & COUNT_MAX;
    }

    /** Nothing can arrive for the imm any more: the slot may be reused, with the next generation. */
    void free(int imm) {
        int slot = Imm.slot(imm);
        generations[slot] = (generations[slot] + 1) % generationCount;
        free[(freeFrom + freeCount++) % free.length] = slot;
    }

    long arrivedWeight(int imm) {
        return states.getAcquire(Imm.slot(imm)) & COUNT_MAX;
    }
}
