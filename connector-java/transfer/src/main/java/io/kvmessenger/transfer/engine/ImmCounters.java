package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Imm;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * How much has arrived for each open immediate, and how much is expected. Primitive arrays indexed by slot.
 *
 * <p>The messenger's thread reserves, publishes, retires and frees slots; any worker counts arrivals: a slot has one word to
 * which all add, so that one of them, and no other, sees the sum become what is expected. A slot that was
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

    /** What has arrived: the low bits of a slot's state. */
    private static final int COUNT_BITS = 55;

    private static final long COUNT_MAX = (1L << COUNT_BITS) - 1;
    private static final long OPEN_BIT = 1L << 63;

    /** While open: the open bit, the generation, and what has arrived; 0 while not. One word, so that both change as one. */
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

    /** Takes a slot for a new window; arrivals are strays until it is published. {@link Imm#NONE} when none is free. */
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

    /** From now on arrivals count; everything written before is visible to workers that count them. */
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
     * Worker: counts; the caller has made sure that the payload is visible. A slot that is retired meanwhile, or used
     * again, is left as it is.
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

    /** Ends the use of a slot; later arrivals are strays. It is not free yet. Returns what has arrived. */
    long retire(int imm) {
        return states.getAndSet(Imm.slot(imm), 0) & COUNT_MAX;
    }

    /** Nothing can arrive for the imm any more: the slot may be used again, with the next generation. */
    void free(int imm) {
        int slot = Imm.slot(imm);
        generations[slot] = (generations[slot] + 1) % generationCount;
        free[(freeFrom + freeCount++) % free.length] = slot;
    }

    long arrivedWeight(int imm) {
        return states.getAcquire(Imm.slot(imm)) & COUNT_MAX;
    }
}
