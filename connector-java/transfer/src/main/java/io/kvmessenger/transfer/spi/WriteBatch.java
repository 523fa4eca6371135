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
 * Some pages of one request that may travel together: what the engine offers to a path, and what the path shortens to
 * what it takes. Mutable and used again, so that no page costs an object. Worker only.
 */
public final class WriteBatch {
    private long position;
    private TransferRequest request;
    private Region sourceRegion;
    private MemorySegment source;
    /** Where the first page was gathered in {@link #source}; negative when the source is the request's own. */
    private long gatheredOffsetBytes = -1;

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

    /** How many pages a request is made of. */
    private static int pageCountOf(TransferRequest request) {
        return switch (request) {
            case PagedWrites paged -> paged.sourcePages().count();
            case SingleWrite single -> 1;
            case ImmOnly only -> 0;
        };
    }

    /** How long one of its pages is. */
    public static long pageBytesOf(TransferRequest request) {
        return switch (request) {
            case PagedWrites paged -> paged.pageBytes();
            case SingleWrite single -> single.lengthBytes();
            case ImmOnly only -> 0;
        };
    }

    /** What a request reads; null when it is only an immediate. */
    public static Region sourceOf(TransferRequest request) {
        return switch (request) {
            case PagedWrites paged -> paged.source();
            case SingleWrite single -> single.source();
            case ImmOnly only -> null;
        };
    }

    /** What a request is counted in: its pages, or one when it is only an immediate. */
    public static int unitCountOf(TransferRequest request) {
        return request instanceof ImmOnly ? 1 : pageCountOf(request);
    }

    /** How long all pages of a request are together. */
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

    /** Shortens to what one write of a path may be, at least one page; returns the units left. */
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

    /** The request's place in the order of submission. */
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

    /** Null for a batch that is only an immediate. */
    public Region sourceRegion() {
        return sourceRegion;
    }

    /** The memory of the device that it reads; null where it reads a host's, or nothing. */
    public Memory.Device sourceDevice() {
        return source == null && sourceRegion != null && sourceRegion.memory() instanceof Memory.Device device
                ? device
                : null;
    }

    /** Its pages lie one behind the other there from now on, and are read from there. */
    public void gatheredIn(MemorySegment host, long offsetBytes) {
        source = host;
        gatheredOffsetBytes = offsetBytes;
    }

    /** Whether its source is no region but host memory of the engine's own, which stays where it is until the engine ends. */
    public boolean isGathered() {
        return gatheredOffsetBytes >= 0;
    }

    /** The source's bytes, for paths that read host memory only; null for a batch that is only an immediate. */
    public MemorySegment source() {
        return source != null || sourceRegion == null ? source : sourceRegion.hostBytes();
    }

    /** Of the source's first byte, for paths that read a device's memory too. */
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
     * How many pages from page {@code i} on follow each other in source and target, so that they can be moved as one. At
     * least 1.
     */
    public int runLength(int i) {
        return sourcePages == null
                ? 1
                : PageList.runLength(sourcePages, targetPages, pageBytes, firstPage + i, pageCount - i);
    }

    /** The writes that the batch is when each run is one. */
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

    /** Zero for a batch that is only an immediate. */
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

    /** The weight of all pages together. */
    public long weight() {
        return (long) weight * Math.max(1, pageCount);
    }

    /** Forgets the request, so that its memory can be collected. */
    public void clear() {
        request = null;
        window = null;
        sourceRegion = null;
        source = null;
        sourcePages = null;
        targetPages = null;
    }
}
