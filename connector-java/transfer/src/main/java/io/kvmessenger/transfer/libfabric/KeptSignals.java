package io.kvmessenger.transfer.libfabric;

import io.kvmessenger.foreign.LibC;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.function.Supplier;

/**
 * Restores signal handlers that a library replaces during its initialisation. Libfabric's provider for shared memory
 * replaces four: the JVM depends on two of them, and inference engines are ended by the others.
 */
final class KeptSignals {
    /** All standard signals, of which the system refuses two. */
    private static final int SIGNALS = 31;

    /** At least the size of {@code struct sigaction} in any C library. */
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
