package io.kvmessenger.foreign;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;

/**
 * C function pointers that call Java.
 *
 * <p>Safe from any thread. An exception that leaves the target kills the process: the target must catch everything.
 */
public final class Upcalls {
    private Upcalls() {}

    /** A function pointer that stays valid until the process ends. */
    public static MemorySegment stub(MethodHandle target, FunctionDescriptor descriptor) {
        return stub(target, descriptor, Arena.global());
    }

    /** A function pointer that stays valid until the arena is closed; a call after that kills the process. */
    @SuppressWarnings("restricted")
    public static MemorySegment stub(MethodHandle target, FunctionDescriptor descriptor, Arena arena) {
        return Linker.nativeLinker().upcallStub(target, descriptor, arena);
    }
}
