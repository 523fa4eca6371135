package io.kvmessenger.transfer.nic;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;
import static io.kvmessenger.transfer.spi.LittleEndian.LONG;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.spi.GrantedSlabs;
import java.lang.foreign.MemorySegment;

/**
 * The header of a frame in a peer's slab: it lies in front of the pages and ends where they begin, so that the pages'
 * place does not depend on their number. From the pages backwards: 32 bytes, then the pages' target offsets.
 *
 * <p>Reads and writes one segment, at the place where the pages begin; allocates nothing. It checks shape, not
 * permission.
 */
final class FrameHeader {
    private static final int FIXED_BYTES = 32;
    static final int PAGES_MAX = (GrantedSlabs.ROOM_BYTES - FIXED_BYTES) / Long.BYTES;

    /** Detects malformed input: "KVFR" in wire order. */
    private static final int MARK = 0x5246_564B;

    private static final int MARK_OFFSET = -32;
    private static final int PAGE_COUNT_OFFSET = -28;
    private static final int REGION_ID_OFFSET = -24;
    private static final int WINDOW_OFFSET = -20;
    private static final int WEIGHT_OFFSET = -16;
    private static final int PAGE_BYTES_OFFSET = -8;

    private FrameHeader() {}

    /** @param weight 0 for a part of a page that another frame counts */
    static void encode(
            MemorySegment memory, long pagesAt, int pageCount, int regionId, int window, long weight, long pageBytes) {
        memory.set(INT, pagesAt + MARK_OFFSET, MARK);
        memory.set(INT, pagesAt + PAGE_COUNT_OFFSET, pageCount);
        memory.set(INT, pagesAt + REGION_ID_OFFSET, regionId);
        memory.set(INT, pagesAt + WINDOW_OFFSET, window);
        memory.set(LONG, pagesAt + WEIGHT_OFFSET, weight);
        memory.set(LONG, pagesAt + PAGE_BYTES_OFFSET, pageBytes);
    }

    static void setTargetOffset(MemorySegment memory, long pagesAt, int i, long offsetBytes) {
        memory.set(LONG, offsetPlace(pagesAt, i), offsetBytes);
    }

    private static long offsetPlace(long pagesAt, int i) {
        return pagesAt - lengthBytes(i + 1);
    }

    /** Length of a header. */
    static long lengthBytes(int pageCount) {
        return FIXED_BYTES + (long) pageCount * Long.BYTES;
    }

    /**
     * What is wrong with the header's shape; null when valid.
     *
     * @param slabBytes room for the pages
     */
    static String fault(MemorySegment memory, long pagesAt, long slabBytes) {
        if (memory.get(INT, pagesAt + MARK_OFFSET) != MARK) {
            return "a frame does not begin with its mark";
        }
        int pageCount = pageCount(memory, pagesAt);
        if (pageCount < 1 || pageCount > PAGES_MAX) {
            return "a frame claims " + pageCount + " pages, 1 to " + PAGES_MAX;
        }
        long pageBytes = pageBytes(memory, pagesAt);
        if (pageBytes < 0 || pageBytes > slabBytes / pageCount) {
            return "a frame claims " + pageCount + " pages of " + pageBytes + " bytes in a slab of " + slabBytes;
        }
        long weight = weight(memory, pagesAt);
        return weight < 0 || weight > (long) Imm.WEIGHT_MAX * pageCount ? "a frame claims weight " + weight : null;
    }

    static int pageCount(MemorySegment memory, long pagesAt) {
        return memory.get(INT, pagesAt + PAGE_COUNT_OFFSET);
    }

    static int regionId(MemorySegment memory, long pagesAt) {
        return memory.get(INT, pagesAt + REGION_ID_OFFSET);
    }

    /** Slot and generation. */
    static int window(MemorySegment memory, long pagesAt) {
        return memory.get(INT, pagesAt + WINDOW_OFFSET) & ~Imm.WEIGHT_MAX;
    }

    static long weight(MemorySegment memory, long pagesAt) {
        return memory.get(LONG, pagesAt + WEIGHT_OFFSET);
    }

    static long pageBytes(MemorySegment memory, long pagesAt) {
        return memory.get(LONG, pagesAt + PAGE_BYTES_OFFSET);
    }

    static long targetOffset(MemorySegment memory, long pagesAt, int i) {
        return memory.get(LONG, offsetPlace(pagesAt, i));
    }
}
