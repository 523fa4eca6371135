package io.kvmessenger.hooks;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/**
 * The word by which an engine tells how many layers it has completed since it started.
 *
 * <p>ABI: 64 bits, little-endian, aligned to its length, alone in its cache line if possible; one writer, the engine's
 * worker thread or device stream. A device that can only write 32 bits in the order of its stream has a word of 32 bits. It
 * only grows, modulo its width; it also grows in passes of which nothing is sent (warm-up, capture, decode).
 *
 * <p>Safe from any thread: a reader that sees count {@code c} also sees the KV written before the writer stored {@code c}.
 * It does not own its memory and never writes to it.
 */
public final class LayerCounter {
    public static final int LENGTH_BYTES = 8;
    /** Of a word that wraps at 2^32. */
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
     * How many bumps the count has gone past a position; negative while it is before. Right across a wrap, as long as the
     * two are less than half the word's range apart.
     *
     * @param position a count; of a short word the low 32 bits matter
     */
    public long past(long position) {
        return isShort ? (int) SHORT_WORD.getAcquire(word, 0L) - (int) position : count() - position;
    }

    private long count() {
        return (long) WORD.getAcquire(word, 0L);
    }
}
