package io.kvmessenger.transfer.engine;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;
import static io.kvmessenger.transfer.spi.LittleEndian.LONG;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.ReadKey;
import io.kvmessenger.transfer.TransferRequest.PageList;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;

/**
 * A reader's request to the owner of pages to write some of them into its window: one part of a read, as one control
 * record.
 *
 * <p>A value. Parsing checks shape, not permission: offsets may have any value, but consecutive page indices must not
 * overflow.
 *
 * @param imm the reader's window, weight zero
 * @param part index of the part within the read
 * @param hearsTooLong whether the reader understands {@link ReadAnswer#TOO_LONG}; those of the previous version do not
 */
record ReadAsk(
        int imm,
        int part,
        boolean hearsTooLong,
        ReadKey from,
        int sourceRegionId,
        PageList sourcePages,
        int targetRegionId,
        PageList targetPages,
        int pageBytes) {
    static final int PAGES_MAX = 256;
    /** Target length of a part; a single page may be longer. */
    static final long PART_AIM_BYTES = 4 << 20;

    /** Keeps the index of a page part from overflowing. */
    static final int PARTS_PER_PAGE_MAX = 1 << 16;

    /** Flag beside the part, which owners of the previous version return unchanged. */
    static final int HEARS_TOO_LONG = 1 << 30;

    private static final int LISTS_OFFSET = 40;
    private static final int LIST_BYTES = 32;
    private static final int INDICES_OFFSET = LISTS_OFFSET + 2 * LIST_BYTES;
    /** One more than the pages, since a list of page parts may begin and end within a page. */
    private static final int INDICES_MAX = PAGES_MAX + 1;

    static final int LENGTH_MAX_BYTES = INDICES_OFFSET + 2 * INDICES_MAX * Integer.BYTES;

    static int pagesPerPart(int pageBytes) {
        return Math.clamp(PART_AIM_BYTES / pageBytes, 1, PAGES_MAX);
    }

    /** @param out at least {@link #LENGTH_MAX_BYTES} long; returns the written part of it */
    MemorySegment encode(MemorySegment out) {
        out.set(INT, 0, imm);
        out.set(INT, 4, hearsTooLong ? part | HEARS_TOO_LONG : part);
        out.set(LONG, 8, from.serial());
        out.set(LONG, 16, from.key());
        out.set(INT, 24, sourceRegionId);
        out.set(INT, 28, targetRegionId);
        out.set(INT, 32, pageBytes);
        out.set(INT, 36, sourcePages.count());
        long end = encode(out, LISTS_OFFSET, sourcePages, INDICES_OFFSET);
        end = encode(out, LISTS_OFFSET + LIST_BYTES, targetPages, end);
        return out.asSlice(0, end);
    }

    private static long encode(MemorySegment out, long at, PageList list, long indicesAt) {
        int perPage = list.partsPerPage();
        int first = list.from() / perPage;
        int count = indexCount(list.from() % perPage, list.count(), perPage);
        out.set(LONG, at, list.strideBytes());
        out.set(LONG, at + 8, list.offsetBytes());
        out.set(LONG, at + 16, list.partStrideBytes());
        out.set(INT, at + 24, perPage);
        out.set(INT, at + 28, list.from() % perPage);
        MemorySegment.copy(list.indices(), first, out, INT, indicesAt, count);
        return indicesAt + (long) count * Integer.BYTES;
    }

    /** Decodes a record; null when malformed. */
    static ReadAsk parse(MemorySegment in) {
        if (in.byteSize() < INDICES_OFFSET) {
            return null;
        }
        int imm = in.get(INT, 0);
        int pageBytes = in.get(INT, 32);
        int count = in.get(INT, 36);
        if (Imm.slot(imm) == 0 || Imm.weight(imm) != 0 || pageBytes < 1 || count < 1 || count > PAGES_MAX) {
            return null;
        }
        PageList sources = parse(in, LISTS_OFFSET, count, INDICES_OFFSET);
        if (sources == null) {
            return null;
        }
        long targetsAt = INDICES_OFFSET + (long) sources.indices().length * Integer.BYTES;
        PageList targets = parse(in, LISTS_OFFSET + LIST_BYTES, count, targetsAt);
        if (targets == null || in.byteSize() != targetsAt + (long) targets.indices().length * Integer.BYTES) {
            return null;
        }
        ReadKey key = new ReadKey(in.get(LONG, 8), in.get(LONG, 16));
        int part = in.get(INT, 4) & ~HEARS_TOO_LONG;
        boolean hearsTooLong = part != in.get(INT, 4);
        return new ReadAsk(imm, part, hearsTooLong, key, in.get(INT, 24), sources, in.get(INT, 28), targets, pageBytes);
    }

    private static PageList parse(MemorySegment in, long at, int count, long indicesAt) {
        long strideBytes = in.get(LONG, at);
        long offsetBytes = in.get(LONG, at + 8);
        long partStrideBytes = in.get(LONG, at + 16);
        int perPage = in.get(INT, at + 24);
        int firstPart = in.get(INT, at + 28);
        if (perPage < 1 || perPage > PARTS_PER_PAGE_MAX || firstPart < 0 || firstPart >= perPage) {
            return null;
        }
        int indexCount = indexCount(firstPart, count, perPage);
        if (in.byteSize() < indicesAt + (long) indexCount * Integer.BYTES) {
            return null;
        }
        int[] indices = new int[indexCount];
        MemorySegment.copy(in, INT, indicesAt, indices, 0, indexCount);
        return Arrays.stream(indices).anyMatch(index -> index < 0)
                ? null
                : new PageList(indices, firstPart, count, strideBytes, offsetBytes, perPage, partStrideBytes);
    }

    private static int indexCount(int firstPart, int count, int perPage) {
        return (int) Math.ceilDiv((long) firstPart + count, perPage);
    }
}
