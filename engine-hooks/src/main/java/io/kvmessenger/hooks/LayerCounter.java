package io.kvmessenger.hooks;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/**
 * The word in memory in which an engine counts the layers that it has completed since it started.
 *
 * <p>ABI: 64 bits, little-endian, naturally aligned, preferably alone in its cache line; a single writer, the engine's
 * worker thread or device stream. A device that can write only 32 bits in stream order uses a word of 32 bits. The
 * count only grows, modulo its width; it also grows in passes of which nothing is sent (warm-up, capture, decode).
 *
 * <p>Safe from any thread: a reader that sees count {@code c} also sees the KV written before the writer stored
 * {@code c}. It does not own its memory and never writes to it.
 */
public final class LayerCounter {
    public static final int LENGTH_BYTES = 8;
    /** Length of a word that wraps at 2^32. */
    public static final int SHORT_LENGTH_BYTES = 4;

    private static final VarHandle WORD =
            ValueLayout.JAVA_LONG.withOrder(ByteOrder.LITTLE_ENDIAN).varHandle();
    private static final VarHandle SHORT_WORD =
            ValueLayout.JAVA_INT.withOrder(ByteOrder.LITTLE_ENDIAN).varHandle();

    private final MemorySegment word;
    private final boolean isShort;

    /** @param word the counter's {@value #LENGTH_BYTES} or {@value #SHORT_LENGTH_BYTES} bytes; must outlive this object */
    public LayerCounter(MemorySegment word) {
        long lengthBytes = word.byteSize();
        boolean known = lengthBytes == LENGTH_BYTES || lengthBytes == SHORT_LENGTH_BYTES;
        if (!known || !word.isNative() || word.address() % lengthBytes != 0) {
            throw new IllegalArgumentException("the layer counter is " + lengthBytes + " bytes at address 0x"
                    + Long.toHexString(word.address()) + ", expected " + LENGTH_BYTES + " or " + SHORT_LENGTH_BYTES
                    + " aligned bytes of native memory");
        }
        this.word = word;
        this.isShort = lengthBytes == SHORT_LENGTH_BYTES;
    }

    /**
     * How many increments the count has gone past a position; negative before it. Correct across a wrap, as long as the
     * two are less than half the word's range apart.
     *
     * @param position a count; for a 32-bit word only the low 32 bits matter
     */
    public long past(long position) {
        return isShort ? (int) SHORT_WORD.getAcquire(word, 0L) - (int) position : count() - position;
    }

    private long count() {
        return (long) WORD.getAcquire(word, 0L);
    }
}
