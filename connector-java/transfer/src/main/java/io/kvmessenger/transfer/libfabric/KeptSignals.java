package io.kvmessenger.transfer.libfabric;

import io.kvmessenger.foreign.LibC;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.function.Supplier;

/**
 * Puts back the signal handlers that a library takes while it starts. Libfabric's provider for shared memory takes four: the JVM
 * lives on two of them, and an engine ends by the others.
 */
final class KeptSignals {
    /** All that have a name, of which the system refuses two. */
    private static final int SIGNALS = 31;

    /** As long as {@code struct sigaction} of any C library at least. */
    private static final long ACTION_BYTES = 256;

    private KeptSignals() {}

    static <T> T during(LibC libC, Supplier<T> start) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment actions = arena.allocate(SIGNALS * ACTION_BYTES, Long.BYTES);
            boolean[] known = new boolean[SIGNALS];
            for (int i = 0; i < SIGNALS; i++) {
                known[i] = libC.sigaction(i + 1, MemorySegment.NULL, action(actions, i)) == 0;
            }
            try {
                return start.get();
            } finally {
                for (int i = 0; i < SIGNALS; i++) {
                    if (known[i]) {
                        libC.sigaction(i + 1, action(actions, i), MemorySegment.NULL);
                    }
                }
            }
        }
    }

    private static MemorySegment action(MemorySegment actions, int i) {
        return actions.asSlice(i * ACTION_BYTES, ACTION_BYTES);
    }
}
