package io.kvmessenger.transfer;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import java.lang.foreign.MemorySegment;

/**
 * Host memory behind a memfd, so that a same-host peer may map it: for tests, benchmarks and context slots.
 *
 * <p>Allocated and closed by any one thread; the memory is usable from all. It does not register itself.
 */
public final class HostMemory implements AutoCloseable {
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
        int memfd = ForeignMemory.createFile(libC, name, lengthBytes);
        long address =
                libC.mmap(0, lengthBytes, MemoryApi.PROT_READ | MemoryApi.PROT_WRITE, MemoryApi.MAP_SHARED, memfd, 0);
        Errno.require("mmap", address);
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
            Errno.require("munmap", libC.munmap(memory.address(), memory.byteSize()));
            Errno.require("close", libC.close(memfd));
        }
    }
}
