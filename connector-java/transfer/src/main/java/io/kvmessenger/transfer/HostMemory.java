package io.kvmessenger.transfer;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * Host memory behind a memfd, so that a same-host peer may map it: for tests, benchmarks and context slots.
 *
 * <p>Allocated and closed by any one thread; the memory is usable from all. It does not register itself.
 */
public final class HostMemory implements AutoCloseable {
    /** The same seals as on an engine's KV memory, which the Python side creates. */
    private static final int SEALS = MemoryApi.F_SEAL_SHRINK | MemoryApi.F_SEAL_GROW | MemoryApi.F_SEAL_SEAL;

    private final LibC libC;
    private final MemorySegment memory;
    private final int memfd;
    private boolean closed;

    private HostMemory(LibC libC, MemorySegment memory, int memfd) {
        this.libC = libC;
        this.memory = memory;
        this.memfd = memfd;
    }

    /**
     * @param name shown in /proc, for diagnosis
     * @throws IllegalStateException when the operating system refuses
     */
    public static HostMemory allocate(String name, long lengthBytes) {
        LibC libC = new FfmLibC();
        int memfd;
        try (Arena arena = Arena.ofConfined()) {
            memfd = libC.memfd_create(arena.allocateFrom(name), MemoryApi.MFD_CLOEXEC | MemoryApi.MFD_ALLOW_SEALING);
        }
        requireDone("memfd_create", memfd);
        requireDone("ftruncate", libC.ftruncate(memfd, lengthBytes));
        // A peer that maps memory which then shrinks would die of SIGBUS.
        requireDone("fcntl", libC.fcntl(memfd, MemoryApi.F_ADD_SEALS, SEALS));
        long address =
                libC.mmap(0, lengthBytes, MemoryApi.PROT_READ | MemoryApi.PROT_WRITE, MemoryApi.MAP_SHARED, memfd, 0);
        requireDone("mmap", address);
        return new HostMemory(libC, ForeignMemory.at(address, lengthBytes), memfd);
    }

    /** The mapping in this process. */
    public MemorySegment memory() {
        return memory;
    }

    /** The memory in the form that a transfer engine registers. */
    public Memory.Host shared() {
        return new Memory.Host(memory, memfd);
    }

    /** The file descriptor of the memory, by which another process can map it. */
    public int memfd() {
        return memfd;
    }

    /** Unmaps the memory; the caller ensures that no region is registered on it. */
    @Override
    public void close() {
        if (!closed) {
            closed = true;
            requireDone("munmap", libC.munmap(memory.address(), memory.byteSize()));
            requireDone("close", libC.close(memfd));
        }
    }

    private static void requireDone(String call, long result) {
        if (result < 0) {
            throw new IllegalStateException(call + " failed with " + Errno.name((int) -result));
        }
    }
}
