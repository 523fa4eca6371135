package io.kvmessenger.transfer.tcp;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;
import static io.kvmessenger.transfer.spi.LittleEndian.LONG;

import io.kvmessenger.transfer.Imm;
import java.lang.foreign.MemorySegment;

/**
 * The header of a batch of pages on a data path: 40 bytes, which include the first page's target offset, then the other
 * pages' offsets, then the pages' bytes. A frame without pages is an immediate alone; one without a weight either is a
 * probe, which shows that the socket still leads to the peer.
 *
 * <p>Reads and writes one segment; allocates nothing. It checks shape, not permission.
 */
final class TcpFrame {
    static final int HEADER_BYTES = 40;
    static final int PAGES_MAX = 256;
    /** Target length of a frame's payload; a single page may be longer. */
    static final long PAYLOAD_AIM_BYTES = 1 << 20;

    static final int LENGTH_MAX_BYTES = HEADER_BYTES + (PAGES_MAX - 1) * Long.BYTES;

    /** Detects malformed input after the hello: "KVWR" in wire order. */
    private static final int MARK = 0x5257_564B;

    private static final int MARK_OFFSET = 0;
    private static final int PAGE_COUNT_OFFSET = 4;
    private static final int REGION_ID_OFFSET = 8;
    private static final int WINDOW_OFFSET = 12;
    private static final int WEIGHT_OFFSET = 16;
    private static final int PAGE_BYTES_OFFSET = 24;
    private static final int TARGETS_OFFSET = 32;

    private TcpFrame() {}

    static void encode(MemorySegment frame, int pageCount, int regionId, int window, long weight, long pageBytes) {
        frame.set(INT, MARK_OFFSET, MARK);
        frame.set(INT, PAGE_COUNT_OFFSET, pageCount);
        frame.set(INT, REGION_ID_OFFSET, regionId);
        frame.set(INT, WINDOW_OFFSET, window);
        frame.set(LONG, WEIGHT_OFFSET, weight);
        frame.set(LONG, PAGE_BYTES_OFFSET, pageBytes);
        frame.set(LONG, TARGETS_OFFSET, 0);
    }

    static void encodeProbe(MemorySegment frame) {
        encode(frame, 0, 0, 0, 0, 0);
    }

    /** Whether the frame writes and counts nothing. */
    static boolean isProbe(MemorySegment frame) {
        return pageCount(frame) == 0 && weight(frame) == 0;
    }

    static void setTargetOffset(MemorySegment frame, int i, long offsetBytes) {
        frame.set(LONG, TARGETS_OFFSET + (long) i * Long.BYTES, offsetBytes);
    }

    /** Length of header and offsets together. */
    static int lengthBytes(int pageCount) {
        return HEADER_BYTES + Math.max(0, pageCount - 1) * Long.BYTES;
    }

    /** What is wrong with the header's shape; null when valid. */
    static String fault(MemorySegment frame) {
        if (frame.get(INT, MARK_OFFSET) != MARK) {
            return "a frame does not start with its mark";
        }
        int pageCount = pageCount(frame);
        if (pageCount < 0 || pageCount > PAGES_MAX) {
            return "a frame claims " + pageCount + " pages, at most " + PAGES_MAX;
        }
        long pageBytes = pageBytes(frame);
        if (pageBytes < 0 || pageBytes > Long.MAX_VALUE / PAGES_MAX) {
            return "a frame claims pages of " + pageBytes + " bytes";
        }
        if (isProbe(frame)) {
            return null;
        }
        if (weight(frame) < 1 || weight(frame) > (long) Imm.WEIGHT_MAX * PAGES_MAX) {
            return "a frame claims weight " + weight(frame);
        }
        return null;
    }

    static int pageCount(MemorySegment frame) {
        return frame.get(INT, PAGE_COUNT_OFFSET);
    }

    static int regionId(MemorySegment frame) {
        return frame.get(INT, REGION_ID_OFFSET);
    }

    /** Slot and generation. */
    static int window(MemorySegment frame) {
        return frame.get(INT, WINDOW_OFFSET) & ~Imm.WEIGHT_MAX;
    }

    static long weight(MemorySegment frame) {
        return frame.get(LONG, WEIGHT_OFFSET);
    }

    static long pageBytes(MemorySegment frame) {
        return frame.get(LONG, PAGE_BYTES_OFFSET);
    }

    static long targetOffset(MemorySegment frame, int i) {
        return frame.get(LONG, TARGETS_OFFSET + (long) i * Long.BYTES);
    }
}
