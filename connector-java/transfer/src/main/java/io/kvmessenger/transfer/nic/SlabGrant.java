package io.kvmessenger.transfer.nic;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;
import static io.kvmessenger.transfer.spi.LittleEndian.LONG;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.spi.GrantedSlabs;
import java.lang.foreign.MemorySegment;

/**
 * A target's data on the slabs that a writer may write frames to. A value.
 *
 * @param memory all slabs in one piece, each of {@link GrantedSlabs#ROOM_BYTES} and then its pages
 * @param slabBytes length of the pages in each
 */
public record SlabGrant(RemoteMemory memory, int slabCount, long slabBytes) {
    private static final int LENGTH_BYTES = RemoteMemory.LENGTH_BYTES + 2 * Long.BYTES;

    public MemorySegment encode() {
        MemorySegment out = memory.encode(2 * Long.BYTES);
        out.set(INT, RemoteMemory.LENGTH_BYTES, slabCount);
        out.set(LONG, RemoteMemory.LENGTH_BYTES + Long.BYTES, slabBytes);
        return out;
    }

    /**
     * Decodes a record.
     *
     * @throws IllegalArgumentException when it is none
     */
    public static SlabGrant parse(MemorySegment in) {
        RemoteMemory memory = RemoteMemory.parse(in);
        if (memory == null || in.byteSize() < LENGTH_BYTES) {
            throw new IllegalArgumentException("the peer grants slabs without saying which");
        }
        SlabGrant grant = new SlabGrant(
                memory, in.get(INT, RemoteMemory.LENGTH_BYTES), in.get(LONG, RemoteMemory.LENGTH_BYTES + Long.BYTES));
        if (grant.slabCount < 1
                || grant.slabCount > Math.min(Long.SIZE, Imm.WEIGHT_MAX)
                || grant.slabBytes < 1
                || grant.slabBytes > Integer.MAX_VALUE
                || memory.lengthBytes() != grant.slabCount * grant.strideBytes()) {
            throw new IllegalArgumentException("the peer grants " + grant.slabCount + " slabs of " + grant.slabBytes
                    + " bytes in " + memory.lengthBytes());
        }
        return grant;
    }

    private long strideBytes() {
        return GrantedSlabs.ROOM_BYTES + slabBytes;
    }

    /** Offset of a slab's pages in the memory of all slabs. */
    long pagesOffset(int slab) {
        return slab * strideBytes() + GrantedSlabs.ROOM_BYTES;
    }

    /** All slabs, as the bits of a number. */
    long allSlabs() {
        return -1L >>> (Long.SIZE - slabCount);
    }
}
