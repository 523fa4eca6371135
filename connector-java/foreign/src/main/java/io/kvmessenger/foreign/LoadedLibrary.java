package io.kvmessenger.foreign;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;

/**
 * A shared library loaded at run time; it stays loaded until the process ends.
 *
 * <p>Immutable.
 */
final class LoadedLibrary {
    private static final int RTLD_NOW = 2;

    private static final MethodHandle SETENV = system("setenv", JAVA_INT, ADDRESS, ADDRESS, JAVA_INT);
    private static final MethodHandle DLOPEN = system("dlopen", ADDRESS, ADDRESS, JAVA_INT);
    private static final MethodHandle DLSYM = system("dlsym", ADDRESS, ADDRESS, ADDRESS);
    private static final MethodHandle DLERROR = system("dlerror", ADDRESS);

    private final MemorySegment handle;

    private LoadedLibrary(MemorySegment handle) {
        this.handle = handle;
    }

    /**
     * @param library its path, or a name for the loader
     * @param variable of the environment, to be set to 1 before; "" for none
     * @throws UnsatisfiedLinkError saying in one line why it cannot be loaded
     */
    static LoadedLibrary load(String library, String variable) {
        try (Arena arena = Arena.ofConfined()) {
            if (!variable.isEmpty()) {
                int _ = (int) SETENV.invokeExact(arena.allocateFrom(variable), arena.allocateFrom("1"), 1);
            }
            MemorySegment handle = (MemorySegment) DLOPEN.invokeExact(arena.allocateFrom(library), RTLD_NOW);
            if (handle.equals(MemorySegment.NULL)) {
                throw new UnsatisfiedLinkError(error());
            }
            return new LoadedLibrary(handle);
        } catch (Throwable t) {
            throw Downcalls.unexpected(t);
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
            throw Downcalls.unexpected(t);
        }
    }

    private static String error() throws Throwable {
        MemorySegment text = (MemorySegment) DLERROR.invokeExact();
        return ForeignMemory.stringAt(text.address());
    }

    private static MethodHandle system(String name, MemoryLayout result, MemoryLayout... arguments) {
        return Downcalls.ofProcess(name, FunctionDescriptor.of(result, arguments));
    }
}
