package io.kvmessenger.hooks;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.VarHandle;

/** The engine's side of the counter. */
final class SimulatedCounter {
    private static final VarHandle WORD = ValueLayout.JAVA_LONG.varHandle();
    private static final VarHandle SHORT_WORD = ValueLayout.JAVA_INT.varHandle();

    private final MemorySegment word;
    private long count;

    SimulatedCounter() {
        this(LayerCounter.LENGTH_BYTES);
    }

    SimulatedCounter(int lengthBytes) {
        word = Arena.ofAuto().allocate(lengthBytes, LayerCounter.LENGTH_BYTES);
    }

    LayerCounter counter() {
        return new LayerCounter(word);
    }

    void set(long count) {
        this.count = count;
        if (word.byteSize() == LayerCounter.LENGTH_BYTES) {
            WORD.setRelease(word, 0L, count);
        } else {
            SHORT_WORD.setRelease(word, 0L, (int) count);
        }
    }

    void bump(int layerCount) {
        set(count + layerCount);
    }
}
