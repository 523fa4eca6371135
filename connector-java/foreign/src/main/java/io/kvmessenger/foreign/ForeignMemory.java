package io.kvmessenger.foreign;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;

/**
 * Views of memory that the JVM does not own.
 *
 * <p>Safe from any thread. It does not keep the memory alive: using a view after its memory is unmapped kills the
 * process.
 */
public final class ForeignMemory {
    @SuppressWarnings("restricted")
    private static final MemorySegment EVERYTHING = MemorySegment.NULL.reinterpret(Long.MAX_VALUE);

    /** The same seals as on an engine's KV memory, which the Python side creates. */
    private static final int SEALS = MemoryApi.F_SEAL_SHRINK | MemoryApi.F_SEAL_GROW | MemoryApi.F_SEAL_SEAL;

    /** The CPU's page size. */
    public static final long PAGE_BYTES = pageBytes();

    private ForeignMemory() {}

    @SuppressWarnings("restricted")
    private static long pageBytes() {
        Linker linker = Linker.nativeLinker();
        MethodHandle size = linker.downcallHandle(
                linker.defaultLookup().findOrThrow("getpagesize"), FunctionDescriptor.of(ValueLayout.JAVA_INT));
        try {
            return (int) size.invokeExact();
        } catch (Throwable t) {
            throw Downcalls.unexpected(t);
        }
    }

    /** Copies between addresses, without checking either; allocates nothing. */
    public static void copy(long source, long target, long lengthBytes) {
        MemorySegment.copy(EVERYTHING, source, EVERYTHING, target, lengthBytes);
    }

    /** Copies from an address into an array, without checking the address; allocates nothing. */
    public static void copy(long source, byte[] target, int targetIndex, int lengthBytes) {
        MemorySegment.copy(EVERYTHING, ValueLayout.JAVA_BYTE, source, target, targetIndex, lengthBytes);
    }

    /** The 64-bit word at an address, without checking the address; allocates nothing. */
    static long longAt(long address) {
        return EVERYTHING.get(ValueLayout.JAVA_LONG, address);
    }

    /** The 32-bit word at an address, without checking the address; allocates nothing. */
    static int intAt(long address) {
        return EVERYTHING.get(ValueLayout.JAVA_INT, address);
    }

    /** The zero-terminated string at an address; empty at address 0. */
    public static String stringAt(long address) {
        return address == 0 ? "" : EVERYTHING.getString(address);
    }

    /** The {@code lengthBytes} bytes at {@code address}, readable and writable from any thread, without a scope. */
    @SuppressWarnings("restricted")
    public static MemorySegment at(long address, long lengthBytes) {
        if (address == 0 || lengthBytes < 0) {
            throw new IllegalArgumentException("no memory at address " + address + " of " + lengthBytes + " bytes");
        }
        return MemorySegment.ofAddress(address).reinterpret(lengthBytes);
    }

    /** The same, until the arena is closed: after that an access throws instead of killing the process. */
    @SuppressWarnings("restricted")
    public static MemorySegment at(long address, long lengthBytes, Arena arena) {
        return at(address, lengthBytes).reinterpret(arena, null);
    }

    /**
     * Creates a memfd that cannot shrink under the processes that map it, which would die of SIGBUS; the descriptor is
     * the caller's.
     *
     * @throws IllegalStateException when the operating system refuses
     */
    public static int createFile(LibC libC, String name, long lengthBytes) {
        try (Arena arena = Arena.ofConfined()) {
            int fd = libC.memfd_create(arena.allocateFrom(name), MemoryApi.MFD_CLOEXEC | MemoryApi.MFD_ALLOW_SEALING);
            Errno.require("memfd_create", fd);
            try {
                Errno.require("ftruncate", libC.ftruncate(fd, lengthBytes));
                Errno.require("fcntl", libC.fcntl(fd, MemoryApi.F_ADD_SEALS, SEALS));
            } catch (IllegalStateException e) {
                libC.close(fd);
                throw e;
            }
            return fd;
        }
    }
}
