package io.kvmessenger.hooks;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/**
 * The word by which an engine tells how many layers it has completed since it started.
 *
 * <p>ABI: 64 bits, little-endian, aligned to 8 bytes, alone in its cache line if possible; one writer, the engine's
 * worker thread or device stream. It only grows; it also grows in steps nobody watches (warm-up, capture, decode).
 *
 * <p>Safe from any thread: who reads count {@code c} also sees the KV written before the writer stored {@code c}. It
 * does not own its memory and never writes to it.
 */
public final class LayerCounter {
    public static final int LENGTH_BYTES = 8;

    private static final VarHandle WORD =
            ValueLayout.JAVA_LONG.withOrder(ByteOrder.LITTLE_ENDIAN).varHandle();

    private final MemorySegment word;

    /** @param word the counter's {@value #LENGTH_BYTES} bytes; must outlive this object */
    public LayerCounter(MemorySegment word) {
        if (word.byteSize() != LENGTH_BYTES || !word.isNative() || word.address() % LENGTH_BYTES != 0) {
            throw new IllegalArgumentException("the layer counter is " + word.byteSize() + " bytes at address 0x"
                    + Long.toHexString(word.address()) + ", expected " + LENGTH_BYTES
                    + " aligned bytes of native memory");
        }
        this.word = word;
    }

    public long count() {
        return (long) WORD.getAcquire(word, 0L);
    }
}
