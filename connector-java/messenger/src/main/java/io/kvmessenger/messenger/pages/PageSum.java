package io.kvmessenger.messenger.pages;

import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferRequest.PageList;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.util.zip.CRC32C;

/**
 * The CRC32C (Castagnoli, as in RFC 3720) over every n-th page of a list, concatenated, computed in steps.
 *
 * <p>Owned by the messenger's thread. The caller keeps the pages unchanged until it is {@link #done}. It allocates when
 * pages lie far apart in a large region, never once per page.
 */
public final class PageSum {
    /** Bytes to sum in one duty cycle of the messenger: about a millisecond of one core. */
    public static final long BYTES_PER_CYCLE = 8 << 20;

    /** Length of a buffer over a region: a buffer cannot exceed 2 GiB. */
    private static final long VIEW_BYTES = 1L << 30;
    /** Views begin at multiples of this. No page is longer, so each page lies inside one view. */
    private static final long VIEW_STEP_BYTES = VIEW_BYTES / 2;

    private final MemorySegment memory;
    private final PageList pages;
    private final int pageBytes;
    private final int first;
    private final int interval;
    private final CRC32C crc = new CRC32C();
    private int next;
    private ByteBuffer view;
    private long viewFromBytes;
    private int pageCount;

    /**
     * @param pageBytes length of each page, at most {@code LayerWriter.JOINED_BYTES_MAX} or one page of one layer
     * @param first position in the list of the first page that counts
     * @param interval distance in the list between pages that count
     */
    public PageSum(Region region, PageList pages, int pageBytes, int first, int interval) {
        this.memory = region.hostBytes();
        this.pages = pages;
        this.pageBytes = pageBytes;
        this.first = first;
        this.next = first;
        this.interval = interval;
    }

    /** Sums at least one page, and further ones until {@code bytesMax} bytes are reached. Returns the bytes summed. */
    public long advance(long bytesMax) {
        long bytes = 0;
        while (!done() && bytes < bytesMax) {
            crc.update(page(pages.offsetOf(next)));
            bytes += pageBytes;
            pageCount++;
            next = next > Integer.MAX_VALUE - interval ? Integer.MAX_VALUE : next + interval;
        }
        return bytes;
    }

    /** Position in the list of the first page that counts. */
    public int first() {
        return first;
    }

    public boolean done() {
        return next >= pages.count();
    }

    /** Pages summed so far. */
    public int pageCount() {
        return pageCount;
    }

    public int value() {
        return (int) crc.getValue();
    }

    private ByteBuffer page(long offsetBytes) {
        if (view == null || offsetBytes < viewFromBytes || offsetBytes + pageBytes > viewFromBytes + view.capacity()) {
            viewFromBytes = offsetBytes / VIEW_STEP_BYTES * VIEW_STEP_BYTES;
            view = memory.asSlice(viewFromBytes, Math.min(VIEW_BYTES, memory.byteSize() - viewFromBytes))
                    .asByteBuffer();
        }
        int from = (int) (offsetBytes - viewFromBytes);
        return view.limit(from + pageBytes).position(from);
    }
}
