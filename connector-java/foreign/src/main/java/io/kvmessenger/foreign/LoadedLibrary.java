package io.kvmessenger.foreign;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;

/**
 * A shared library loaded at run time; it stays loaded until the process ends.
 *
 * <p>Immutable.
 */
final class LoadedLibrary {
    private static final Linker LINKER = Linker.nativeLinker();
    private static final int RTLD_NOW = 2;

    private static final MethodHandle DLOPEN = system("dlopen", ADDRESS, ADDRESS, JAVA_INT);
    private static final MethodHandle DLSYM = system("dlsym", ADDRESS, ADDRESS, ADDRESS);
    private static final MethodHandle DLERROR = system("dlerror", ADDRESS);

    private final MemorySegment handle;

    /**
     * @param library its path, or a name for the loader
     * @throws UnsatisfiedLinkError saying in one line why it cannot be loaded
     */
    LoadedLibrary(String library) {
        try (Arena arena = Arena.ofConfined()) {
            handle = (MemorySegment) DLOPEN.invokeExact(arena.allocateFrom(library), RTLD_NOW);
            if (handle.equals(MemorySegment.NULL)) {
                throw new UnsatisfiedLinkError(error());
            }
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    /**
     * The address of a symbol; of one with several versions, the default.
     *
     * @throws UnsatisfiedLinkError if the library lacks it
     */
    MemorySegment find(String name) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment found = (MemorySegment) DLSYM.invokeExact(handle, arena.allocateFrom(name));
            if (found.equals(MemorySegment.NULL)) {
                throw new UnsatisfiedLinkError(error());
            }
            return found;
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    /** @throws UnsatisfiedLinkError if the library lacks it */
    @SuppressWarnings("restricted")
    MethodHandle symbol(String name, FunctionDescriptor descriptor, Linker.Option... options) {
        return LINKER.downcallHandle(find(name), descriptor, options);
    }

    /** Null if the library is older than the function. */
    MethodHandle optional(String name, FunctionDescriptor descriptor, Linker.Option... options) {
        try {
            return symbol(name, descriptor, options);
        } catch (UnsatisfiedLinkError e) {
            return null;
        }
    }

    private static String error() throws Throwable {
        MemorySegment text = (MemorySegment) DLERROR.invokeExact();
        return ForeignMemory.stringAt(text.address());
    }

    @SuppressWarnings("restricted")
    private static MethodHandle system(String name, MemoryLayout result, MemoryLayout... arguments) {
        return LINKER.downcallHandle(
                LINKER.defaultLookup().findOrThrow(name), FunctionDescriptor.of(result, arguments));
    }
}
