package io.kvmessenger.specdecode;

import java.util.stream.IntStream;

/**
 * Which kinds of context go with one transfer. A value; the kinds are named by their positions in a {@link ContextKinds},
 * which are the same on both sides.
 *
 * @param bits the bit of each kind that goes
 */
public record ContextChoice(int bits) {
    public static final ContextChoice NONE = new ContextChoice(0);

    public boolean isEmpty() {
        return bits == 0;
    }

    public boolean has(int position) {
        return (bits >>> position & 1) != 0;
    }

    /** How many rows go. */
    public int count() {
        return Integer.bitCount(bits);
    }

    /** Ascending: in this order the rows leave. */
    public int[] positions() {
        return IntStream.range(0, ContextKinds.COUNT_MAX).filter(this::has).toArray();
    }
}
