package io.kvmessenger.specdecode;

import java.util.stream.IntStream;

/**
 * The kinds of context that go with one transfer. A value; kinds are identified by their position in a
 * {@link ContextKinds}, which is the same on both sides.
 *
 * @param bits one bit for each kind that goes
 */
public record ContextChoice(int bits) {
    public static final ContextChoice NONE = new ContextChoice(0);

    public boolean isEmpty() {
        return bits == 0;
    }

    public boolean has(int position) {
        return (bits >>> position & 1) != 0;
    }

    /** Number of rows that go. */
    public int count() {
        return Integer.bitCount(bits);
    }

    /** Positions in ascending order, which is the order of sending. */
    public int[] positions() {
        return IntStream.range(0, ContextKinds.COUNT_MAX).filter(this::has).toArray();
    }
}
