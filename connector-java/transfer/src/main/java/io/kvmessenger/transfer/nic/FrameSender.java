package io.kvmessenger.transfer.nic;

import io.kvmessenger.transfer.spi.GrantedSlabs;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * Writes frames into the slabs that a peer has granted: each is one write of a header and the pages behind it.
 *
 * <p>Worker only. A slab is used again when the peer has given it back, and its memory on this side when the NIC has
 * read it too. Pages that were gathered with room in front are sent from where they are, others are copied. A page that
 * is longer than a slab goes in parts, of which the last is counted: it is sent when the peer has given back all others,
 * since no order among writes is assumed. Allocates nothing for a page.
 */
public final class FrameSender {
    /** No post has completed with this write. */
    public static final long NO_POST = -1;

    /** Begins writes. */
    @FunctionalInterface
    public interface Port {
        /**
         * Begins a write from registered memory; returns whether there was room for it.
         *
         * @param to offset in the peer's slabs
         * @param slab to be reported when it is done, by {@link FrameSender#onWritten}
         */
        boolean write(long address, long lengthBytes, long localKey, int imm, long to, int slab);
    }

    private final NicRegions regions;
    private final RegisteredSource source;
    private final SlabGrant grant;
    private final long pagesBytes;
    private final Port port;
    private final long[] postIds;
    /** Slabs that the peer has given back, as bits. */
    private long free;
    /** Slabs whose memory on this side the NIC may be reading, as bits. */
    private long reading;

    /** Null until something is copied. */
    private OwnSlabs own;

    private String fault;

    // The page that is longer than a slab and is being sent; null for none.
    private MemorySegment longSource;
    private long longSourceAt;
    private long longTargetAt;
    private long longLeftBytes;
    private int longRegionId;
    private int longWindow;
    private long longWeight;
    private long longPostId;

    /**
     * @param source finds what was gathered
     * @param writeMaxBytes longest write of the NIC
     * @throws IllegalStateException when it is too short for any frame
     */
    public FrameSender(NicRegions regions, RegisteredSource source, SlabGrant grant, long writeMaxBytes, Port port) {
        pagesBytes = Math.min(grant.slabBytes(), writeMaxBytes - GrantedSlabs.ROOM_BYTES);
        if (pagesBytes < 1) {
            throw new IllegalStateException("one write has at most " + writeMaxBytes + " bytes, too few for a frame");
        }
        this.regions = regions;
        this.source = source;
        this.grant = grant;
        this.port = port;
        postIds = new long[grant.slabCount()];
        free = grant.allSlabs();
    }

    /** The most pages in a frame. */
    public static int pagesMax() {
        return FrameHeader.PAGES_MAX;
    }

    /** The most bytes of pages in a frame; longer pages go in parts. */
    public long pagesBytes() {
        return pagesBytes;
    }

    /** Why the path cannot go on, or null. */
    public String fault() {
        return fault;
    }

    /** Takes the first pages of a batch, as {@link io.kvmessenger.transfer.spi.Endpoint#post}. */
    public int post(WriteBatch batch, long postId) {
        long usable = free & ~reading;
        if (longSource != null || usable == 0) {
            return 0;
        }
        if (batch.pageBytes() > pagesBytes) {
            batch.limit(1, batch.pageBytes(), Long.MAX_VALUE);
            beginLong(batch, postId);
            sendParts();
            return 1;
        }
        batch.limit(FrameHeader.PAGES_MAX, pagesBytes, Long.MAX_VALUE);
        int slab = Long.numberOfTrailingZeros(usable);
        boolean isSent = batch.roomBytes() >= FrameHeader.lengthBytes(batch.pageCount())
                ? sendGathered(batch, slab)
                : sendCopied(batch, slab);
        if (!isSent) {
            return 0;
        }
        onSent(slab, postId);
        return batch.unitCount();
    }

    private boolean sendGathered(WriteBatch batch, int slab) {
        fault = source.find(batch);
        if (fault != null) {
            return false;
        }
        MemorySegment memory = batch.source();
        long pagesAt = batch.sourceOffsetBytes(0);
        encode(batch, memory, pagesAt);
        return send(memory, pagesAt, batch.pageCount(), batch.payloadBytes(), source.localKey(), slab);
    }

    private boolean sendCopied(WriteBatch batch, int slab) {
        if (!hasOwn()) {
            return false;
        }
        long pagesAt = grant.pagesOffset(slab);
        long pageBytes = batch.pageBytes();
        int count = batch.pageCount();
        for (int i = 0; i < count; i++) {
            MemorySegment.copy(
                    batch.source(), batch.sourceOffsetBytes(i), own.memory(), pagesAt + i * pageBytes, pageBytes);
        }
        encode(batch, own.memory(), pagesAt);
        return send(own.memory(), pagesAt, count, batch.payloadBytes(), own.localKey(), slab);
    }

    private static void encode(WriteBatch batch, MemorySegment memory, long pagesAt) {
        int count = batch.pageCount();
        FrameHeader.encode(memory, pagesAt, count, batch.regionId(), batch.window(), batch.weight(), batch.pageBytes());
        for (int i = 0; i < count; i++) {
            FrameHeader.setTargetOffset(memory, pagesAt, i, batch.targetOffsetBytes(i));
        }
    }

    private boolean send(
            MemorySegment memory, long pagesAt, int pageCount, long payloadBytes, long localKey, int slab) {
        long headerBytes = FrameHeader.lengthBytes(pageCount);
        return port.write(
                memory.address() + pagesAt - headerBytes,
                headerBytes + payloadBytes,
                localKey,
                FrameImm.of(slab),
                grant.pagesOffset(slab) - headerBytes,
                slab);
    }

    private void onSent(int slab, long postId) {
        free &= ~(1L << slab);
        reading |= 1L << slab;
        postIds[slab] = postId;
    }

    private void beginLong(WriteBatch batch, long postId) {
        longSource = batch.source();
        longSourceAt = batch.sourceOffsetBytes(0);
        longTargetAt = batch.targetOffsetBytes(0);
        longLeftBytes = batch.pageBytes();
        longRegionId = batch.regionId();
        longWindow = batch.window();
        longWeight = batch.weight();
        longPostId = postId;
    }

    /** Sends what can be sent of a page in parts; returns the number of writes. */
    public int sendParts() {
        int count = 0;
        while (longSource != null && sendPart()) {
            count++;
        }
        return count;
    }

    private boolean sendPart() {
        long usable = free & ~reading;
        long lengthBytes = Math.min(longLeftBytes, pagesBytes);
        boolean isLast = lengthBytes == longLeftBytes;
        if (usable == 0 || (isLast && free != grant.allSlabs()) || !hasOwn()) {
            return false;
        }
        int slab = Long.numberOfTrailingZeros(usable);
        long pagesAt = grant.pagesOffset(slab);
        MemorySegment memory = own.memory();
        MemorySegment.copy(longSource, longSourceAt, memory, pagesAt, lengthBytes);
        FrameHeader.encode(memory, pagesAt, 1, longRegionId, longWindow, isLast ? longWeight : 0, lengthBytes);
        FrameHeader.setTargetOffset(memory, pagesAt, 0, longTargetAt);
        if (!send(memory, pagesAt, 1, lengthBytes, own.localKey(), slab)) {
            return false;
        }
        onSent(slab, isLast ? longPostId : NO_POST);
        longSourceAt += lengthBytes;
        longTargetAt += lengthBytes;
        longLeftBytes -= lengthBytes;
        longSource = isLast ? null : longSource;
        return true;
    }

    /** Whether there is memory to copy pages to; if not, see {@link #fault}. */
    private boolean hasOwn() {
        if (own == null) {
            try {
                own = OwnSlabs.register(regions, grant.memory().lengthBytes());
            } catch (IllegalStateException e) {
                fault = "of its slabs: " + e.getMessage();
            }
        }
        return own != null;
    }

    /** The NIC does not read the slab's memory any more; returns the post that is sent by it, or {@link #NO_POST}. */
    public long onWritten(int slab) {
        reading &= ~(1L << slab);
        return postIds[slab];
    }

    /**
     * The peer has given slabs back.
     *
     * @throws IllegalArgumentException when it has not had them
     */
    public void onFreed(long slabs) {
        if ((slabs & (free | ~grant.allSlabs())) != 0) {
            throw new IllegalArgumentException("the peer gives back slabs that it has not had");
        }
        free |= slabs;
    }

    /** The path is closed: the NIC reads nothing any more. */
    public void close() {
        longSource = null;
        if (own != null) {
            own.close(regions);
            own = null;
        }
    }

    /** A slab on this side for each of the peer's. */
    private record OwnSlabs(Arena arena, MemorySegment memory, NicRegions.Registered registered) {
        /** @throws IllegalStateException when the NIC does not register it */
        static OwnSlabs register(NicRegions regions, long lengthBytes) {
            Arena arena = Arena.ofConfined();
            try {
                MemorySegment memory = arena.allocate(lengthBytes, GrantedSlabs.ROOM_BYTES);
                return new OwnSlabs(arena, memory, regions.addOwn(memory, false));
            } catch (RuntimeException | Error e) {
                arena.close();
                throw e;
            }
        }

        long localKey() {
            return registered.localKey();
        }

        void close(NicRegions regions) {
            regions.remove(registered.remote().regionId());
            arena.close();
        }
    }
}
