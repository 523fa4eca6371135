package io.kvmessenger.transfer;

/**
 * The 32 bits that travel with a write: which counter, which use of it, and how many pages the write covers.
 *
 * <p>Layout, high to low: slot (12 bits), generation (8 bits), weight (12 bits). 32 bits because EFA carries no more.
 * Slot and generation also name the window that a write lands in. The weight of a write is at least 1; a weight of zero
 * marks the name of a window.
 *
 * <p>Pure functions on ints; safe from any thread.
 */
public final class Imm {
    /** Counters one engine can have open at once. */
    public static final int SLOT_COUNT_MAX = 1 << 12;
    /** Generations before a slot's number repeats; a slot is reused only after the previous generation is drained. */
    public static final int GENERATION_COUNT = 1 << 8;
    /** The most pages a single immediate can stand for. */
    public static final int WEIGHT_MAX = (1 << 12) - 1;
    /** No window: slot 0 is never assigned, so a write that carries this is refused. */
    public static final int NONE = 0;

    private Imm() {}

    /** Packs a counter address with weight zero; combine with {@link #withWeight}. */
    public static int of(int slot, int generation) {
        if (slot < 0 || slot >= SLOT_COUNT_MAX) {
            throw new IllegalArgumentException("slot " + slot + " is outside 0.." + (SLOT_COUNT_MAX - 1));
        }
        if (generation < 0 || generation >= GENERATION_COUNT) {
            throw new IllegalArgumentException("generation " + generation + " is outside 0.." + (GENERATION_COUNT - 1));
        }
        return (slot << 20) | (generation << 12);
    }

    /** The same counter with another weight, 1 to {@link #WEIGHT_MAX}. */
    public static int withWeight(int imm, int weight) {
        if (weight < 1 || weight > WEIGHT_MAX) {
            throw new IllegalArgumentException("weight " + weight + " is outside 1.." + WEIGHT_MAX);
        }
        return (imm & ~WEIGHT_MAX) | weight;
    }

    /** Index of the counter. */
    public static int slot(int imm) {
        return imm >>> 20;
    }

    /** Which use of the slot this is. */
    public static int generation(int imm) {
        return (imm >>> 12) & 0xff;
    }

    /** Number of pages that the write counts for. */
    public static int weight(int imm) {
        return imm & WEIGHT_MAX;
    }
}
