package io.kvmessenger.transfer.samehost;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.BitSet;

/** A shared mapping of a memfd, this engine's or a peer's. Worker only; after {@link #close} an access throws. */
public final class MappedFile {
    /** Unit of mapping ahead: takes some tens of microseconds. */
    public static final long CHUNK_BYTES = 2 << 20;
    /** The smallest page size of any system, for the size of the buffer for a chunk's residency. */
    private static final long PAGE_MIN_BYTES = 4096;

    private static final byte RESIDENT = 1;

    private final LibC libC;
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment memory;
    private final MemorySegment residency = arena.allocate(CHUNK_BYTES / PAGE_MIN_BYTES);
    private final BitSet chunksSeen;
    /** Next chunk for {@link #mapNextAhead}. */
    private int nextChunk;

    private MappedFile(LibC libC, long address, long lengthBytes) {
        this.libC = libC;
        memory = ForeignMemory.at(address, lengthBytes, arena);
        chunksSeen = new BitSet(Math.toIntExact(Math.ceilDiv(lengthBytes, CHUNK_BYTES)));
    }

    /**
     * Maps the whole length; the descriptor stays the caller's.
     *
     * @throws IllegalStateException when the operating system refuses, or the file is or could become shorter: touching
     *     a missing page would kill the process
     */
    public static MappedFile map(LibC libC, int fd, long lengthBytes) {
        int seals = libC.fcntl(fd, MemoryApi.F_GET_SEALS, 0);
        if (seals < 0 || (seals & MemoryApi.F_SEAL_SHRINK) == 0) {
            throw new IllegalStateException("a file that may shrink is not mapped: it has no seal F_SEAL_SHRINK");
        }
        long fileBytes = libC.lseek(fd, 0, MemoryApi.SEEK_END);
        if (lengthBytes <= 0 || fileBytes < lengthBytes) {
            throw new IllegalStateException("a file of " + fileBytes + " bytes cannot be mapped for " + lengthBytes);
        }
        long address =
                libC.mmap(0, lengthBytes, MemoryApi.PROT_READ | MemoryApi.PROT_WRITE, MemoryApi.MAP_SHARED, fd, 0);
        Errno.require("mmap", address);
        // A child of this process cannot write there: the end of this process is the end of its writes.
        libC.madvise(address, lengthBytes, MemoryApi.MADV_DONTFORK);
        return new MappedFile(libC, address, lengthBytes);
    }

    public MemorySegment memory() {
        return memory;
    }

    /**
     * Populates page table entries around a range, once, if all of its pages are resident: otherwise the first write to
     * each page would cost a page fault, which takes longer than the copy. Does not allocate pages that the owner has
     * not touched.
     */
    public void mapAhead(long offset, long lengthBytes) {
        long end = offset + lengthBytes;
        for (long at = offset - offset % CHUNK_BYTES; at < end; at += CHUNK_BYTES) {
            int chunk = (int) (at / CHUNK_BYTES);
            if (!chunksSeen.get(chunk)) {
                mapChunk(chunk);
                chunksSeen.set(chunk);
            }
        }
    }

    /**
     * Populates entries for the next {@link #CHUNK_BYTES}, ahead of any write; returns false when none are left. A
     * chunk that its owner has not touched yet is tried again when it is written.
     */
    public boolean mapNextAhead() {
        nextChunk = chunksSeen.nextClearBit(nextChunk);
        if (nextChunk * CHUNK_BYTES >= memory.byteSize()) {
            return false;
        }
        if (mapChunk(nextChunk)) {
            chunksSeen.set(nextChunk);
        }
        nextChunk++;
        return true;
    }

    /** Returns false when not all of its pages are resident. */
    private boolean mapChunk(int chunk) {
        long at = chunk * CHUNK_BYTES;
        long address = memory.address() + at;
        long lengthBytes = Math.min(CHUNK_BYTES, memory.byteSize() - at);
        residency.fill(RESIDENT);
        if (libC.mincore(address, lengthBytes, residency) < 0) {
            return false;
        }
        for (long i = 0; i < residency.byteSize(); i++) {
            if ((residency.get(ValueLayout.JAVA_BYTE, i) & RESIDENT) == 0) {
                return false;
            }
        }
        // Unknown to older kernels: then pages are mapped when they are written.
        libC.madvise(address, lengthBytes, MemoryApi.MADV_POPULATE_READ);
        return true;
    }

    public void close() {
        arena.close();
        libC.munmap(memory.address(), memory.byteSize());
    }
}
