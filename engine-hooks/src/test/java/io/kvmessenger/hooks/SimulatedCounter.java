package io.kvmessenger.hooks;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.VarHandle;

/** The engine's side of the counter. */
final class SimulatedCounter {
    private static final VarHandle WORD = ValueLayout.JAVA_LONG.varHandle();

    private final MemorySegment word = Arena.ofAuto().allocate(LayerCounter.LENGTH_BYTES, LayerCounter.LENGTH_BYTES);

    LayerCounter counter() {
        return new LayerCounter(word);
    }

    void set(long count) {
        WORD.setRelease(word, 0L, count);
    }

    void bump(int layerCount) {
        set((long) WORD.get(word, 0L) + layerCount);
    }
}
