package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.ImmOnly;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import java.lang.foreign.MemorySegment;

/**
 * Consecutive pages of one request: the engine offers them to a path, which shortens the batch to what it takes.
 * Mutable and reused, so that pages cost no objects. Worker only.
 */
public final class WriteBatch {
    private long position;
    private TransferRequest request;
    private Region sourceRegion;
    private MemorySegment source;
    /** Offset of the first page in {@link #source}, if gathered; negative if the source is the request's own. */
    private long gatheredOffsetBytes = -1;

    private long roomBytes;

    private PageList sourcePages;
    private PageList targetPages;
    private long sourceOffsetBytes;
    private long targetOffsetBytes;
    private int firstPage;
    private int pageCount;
    private long pageBytes;
    private int regionId;
    private RemoteWindow window;
    private int weight;

    /** Number of pages of a request. */
    private static int pageCountOf(TransferRequest request) {
        return switch (request) {
            case PagedWrites paged -> paged.sourcePages().count();
            case SingleWrite single -> 1;
            case ImmOnly only -> 0;
        };
    }

    /** Length of one page of a request. */
    public static long pageBytesOf(TransferRequest request) {
        return switch (request) {
            case PagedWrites paged -> paged.pageBytes();
            case SingleWrite single -> single.lengthBytes();
            case ImmOnly only -> 0;
        };
    }

    /** The region that a request reads; null for an immediate alone. */
    public static Region sourceOf(TransferRequest request) {
        return switch (request) {
            case PagedWrites paged -> paged.source();
            case SingleWrite single -> single.source();
            case ImmOnly only -> null;
        };
    }

    /** Number of units of a request: its pages, or one for an immediate alone. */
    public static int unitCountOf(TransferRequest request) {
        return request instanceof ImmOnly ? 1 : pageCountOf(request);
    }

    /** Length of all pages of a request together. */
    public static long payloadBytesOf(TransferRequest request) {
        return pageCountOf(request) * pageBytesOf(request);
    }

    /** Describes {@code count} units of a request, from unit {@code from} on. */
    public void set(long requestPosition, TransferRequest of, int from, int count) {
        if (of != request || gatheredOffsetBytes >= 0) {
            describe(of);
            gatheredOffsetBytes = -1;
        }
        position = requestPosition;
        firstPage = from;
        pageCount = of instanceof ImmOnly ? 0 : count;
    }

    /** Shortens the batch to the limits of one write, but to no less than one page; returns the units left. */
    public int limit(int pagesMax, long bytesMax, long weightMax) {
        long fit = Math.min(pagesMax, Math.max(1, bytesMax / Math.max(1, pageBytes)));
        if (weight > 0) {
            fit = Math.min(fit, Math.max(1, weightMax / weight));
        }
        pageCount = (int) Math.min(pageCount, fit);
        return unitCount();
    }

    private void describe(TransferRequest of) {
        request = of;
        pageBytes = pageBytesOf(of);
        window = of.window();
        weight = of.weight();
        switch (of) {
            case PagedWrites paged -> {
                sourceRegion = paged.source();
                sourcePages = paged.sourcePages();
                targetPages = paged.targetPages();
                regionId = paged.target().regionId();
            }
            case SingleWrite single -> {
                sourceRegion = single.source();
                sourcePages = null;
                sourceOffsetBytes = single.sourceOffsetBytes();
                targetOffsetBytes = single.targetOffsetBytes();
                regionId = single.target().regionId();
            }
            case ImmOnly only -> {
                sourceRegion = null;
                regionId = 0;
            }
        }
        source = sourceRegion != null && sourceRegion.memory() instanceof Memory.Host host ? host.bytes() : null;
    }

    /** The request's position in the order of submission. */
    public long position() {
        return position;
    }

    /** The first unit of the request that the batch covers. */
    public int firstUnit() {
        return firstPage;
    }

    public int unitCount() {
        return Math.max(1, pageCount);
    }

    /** Null for an immediate alone. */
    public Region sourceRegion() {
        return sourceRegion;
    }

    /** The device memory that it reads; null if it reads host memory, or nothing. */
    public Memory.Device sourceDevice() {
        return source == null && sourceRegion != null && sourceRegion.memory() instanceof Memory.Device device
                ? device
                : null;
    }

    /** Redirects the source: its pages have been copied contiguously to this memory, and are read from there. */
    public void gatheredIn(MemorySegment host, long offsetBytes) {
        gatheredIn(host, offsetBytes, 0);
    }

    /** @param room length of the memory in front of them, which their path may write a header to */
    public void gatheredIn(MemorySegment host, long offsetBytes, long room) {
        source = host;
        gatheredOffsetBytes = offsetBytes;
        roomBytes = room;
    }

    /** Length of the memory in front of gathered pages that their path may write to; 0 for other pages. */
    public long roomBytes() {
        return gatheredOffsetBytes >= 0 ? roomBytes : 0;
    }

    /** Whether its source is the engine's own host memory instead of a region; it lasts until the engine ends. */
    public boolean isGathered() {
        return gatheredOffsetBytes >= 0;
    }

    /** The source's bytes, for paths that read host memory only; null for an immediate alone. */
    public MemorySegment source() {
        return source != null || sourceRegion == null ? source : sourceRegion.hostBytes();
    }

    /** Address of the source's first byte, for paths that read device memory too. */
    public long sourceAddress() {
        Memory.Device device = sourceDevice();
        return device == null ? source().address() : device.address();
    }

    public long sourceLengthBytes() {
        Memory.Device device = sourceDevice();
        return device == null ? source().byteSize() : device.lengthBytes();
    }

    public long sourceOffsetBytes(int i) {
        if (gatheredOffsetBytes >= 0) {
            return gatheredOffsetBytes + i * pageBytes;
        }
        return sourcePages == null ? sourceOffsetBytes : sourcePages.offsetOf(firstPage + i);
    }

    public long targetOffsetBytes(int i) {
        return sourcePages == null ? targetOffsetBytes : targetPages.offsetOf(firstPage + i);
    }

    /**
     * Number of pages from page {@code i} on that are contiguous in source and target, so that they can be moved as
     * one. At least 1.
     */
    public int runLength(int i) {
        return sourcePages == null
                ? 1
                : PageList.runLength(sourcePages, targetPages, pageBytes, firstPage + i, pageCount - i);
    }

    /** The number of writes if each run is one. */
    public int runCount() {
        int runs = 0;
        for (int i = 0; i < pageCount; i += runLength(i)) {
            runs++;
        }
        return runs;
    }

    public TransferRequest request() {
        return request;
    }

    /** Zero for an immediate alone. */
    public int pageCount() {
        return pageCount;
    }

    public long pageBytes() {
        return pageBytes;
    }

    public long payloadBytes() {
        return pageCount * pageBytes;
    }

    public int regionId() {
        return regionId;
    }

    /** Slot and generation, weight zero. */
    public int window() {
        return window.imm();
    }

    /** Weight of all pages together. */
    public long weight() {
        return (long) weight * Math.max(1, pageCount);
    }

    /** Drops the request, so that its memory can be collected. */
    public void clear() {
        request = null;
        window = null;
        sourceRegion = null;
        source = null;
        sourcePages = null;
        targetPages = null;
    }
}
