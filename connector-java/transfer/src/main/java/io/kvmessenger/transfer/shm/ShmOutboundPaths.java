package io.kvmessenger.transfer.shm;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.StreamingCopy;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.path.WantedRegion;
import io.kvmessenger.transfer.samehost.MappedFile;
import io.kvmessenger.transfer.samehost.RegionRecord;
import io.kvmessenger.transfer.samehost.RingOutboundPaths;
import io.kvmessenger.transfer.samehost.RunCopier;
import io.kvmessenger.transfer.samehost.SameHostRecord;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Map;

/**
 * One peer whose memory this engine maps: copies pages, then pushes their immediate.
 *
 * <p>Worker only. Regions are mapped when the peer offers them, or on their first write. Their pages are populated
 * ahead, a few at a time: for a short while before the path opens, then while idle, or on their first write. It never
 * writes once it is closed. Each copy is pushed in the same call, so nothing has to be sent again when the mapping is
 * lost; but for a {@link LongPage}, which shorter writes overtake, and which is copied again by another path.
 */
final class ShmOutboundPaths extends RingOutboundPaths {
    private static final int BATCH_PAGES_MAX = 256;
    private static final long BATCH_BYTES = 256 << 10;
    /** Limit on regions that are mapped before they are needed. */
    private static final int REGIONS_OFFERED_MAX = 64;
    /** Longest time for which the path stays closed while pages are populated: enough for some hundreds of MiB. */
    static final long MAPPED_FIRST_NS = 50_000_000;

    private final Map<Integer, MappedFile> regions = new HashMap<>();
    /** Regions whose pages are populated while idle. */
    private final ArrayDeque<MappedFile> partlyMapped = new ArrayDeque<>();

    private final RunCopier copier = new RunCopier(StreamingCopy.ofThisProcess());
    private final LongPage longPage = new LongPage(copier);
    private final WantedRegion wanted = new WantedRegion(this::askFor);
    /** Whether the peer has confirmed the ring. Before that it may have given up, and would leave the ring unread. */
    private boolean taken;

    private boolean allOffered;
    private long openDeadlineNs;
    private String copyFault;
    private int lastRegionId;
    private MemorySegment lastRegion;

    /** @throws IllegalStateException when the peer has been asked too often */
    ShmOutboundPaths(LibC libC, OutboundChannel channel, PathEvents events, Figures figures, long connectDeadlineNs) {
        super(libC, channel, events, figures, connectDeadlineNs);
        request(MemorySegment.NULL);
    }

    @Override
    protected void onPeerRecord(int kind, MemorySegment payload, long nowNs) {
        switch (kind) {
            case SameHostRecord.ACCEPTED -> {
                onAccepted();
                openDeadlineNs = Math.min(nowNs + MAPPED_FIRST_NS, connectDeadlineNs());
            }
            case SameHostRecord.REGION -> onRegion(RegionRecord.parse(payload));
            case SameHostRecord.REGION_OFFERED -> onOffered(RegionRecord.parse(payload));
            case SameHostRecord.ALL_OFFERED -> {
                taken = true;
                allOffered = true;
            }
            default -> throw unexpected(kind);
        }
    }

    /**
     * Populates the next pages; opens the path when none are left, or at its deadline, and not before the peer has
     * shown that it takes immediates.
     */
    @Override
    protected int connect(long nowNs) {
        if (!hasRing()) {
            return 0;
        }
        boolean sent = sendMapped();
        if (nowNs - openDeadlineNs < 0) {
            if (mapAhead()) {
                return 1;
            }
            if (!allOffered) {
                return LOOK_SOON;
            }
        }
        if (!taken) {
            return sent ? 0 : LOOK_SOON;
        }
        open(this);
        return 1;
    }

    @Override
    protected String overdue() {
        return hasRing()
                ? "the peer did not take the mapped ring in time"
                : "the peer did not hand over its ring in time";
    }

    private void onRegion(RegionRecord region) {
        wanted.onAnswer(region == null ? WantedRegion.NONE : region.regionId());
        if (regions.containsKey(region.regionId())) {
            return; // it was offered meanwhile
        }
        if (region.lengthBytes() == RegionRecord.NOT_SHAREABLE) {
            lose(
                    TransferFault.WRITE_REFUSED,
                    "the peer's region " + region.regionId()
                            + " has no descriptor to map; register shareable memory, or leave shm out of the transports");
            return;
        }
        int fd = channel().takeDescriptor();
        if (fd < 0) {
            throw new IllegalArgumentException("the peer sent no descriptor for region " + region.regionId());
        }
        map(region, fd);
    }

    /** Maps an offered region. If that fails, it is requested on its first write, and the failure is reported then. */
    private void onOffered(RegionRecord region) {
        taken = true;
        int fd = channel().takeDescriptor();
        if (fd < 0) {
            return;
        }
        if (region == null || regions.size() >= REGIONS_OFFERED_MAX || regions.containsKey(region.regionId())) {
            libC().close(fd);
            return;
        }
        try {
            map(region, fd);
        } catch (IllegalStateException e) {
            figures().increment(TransferCounter.PATHS_REJECTED);
        }
    }

    /** Takes over the descriptor. */
    private void map(RegionRecord region, int fd) {
        try {
            MappedFile mapped = MappedFile.map(libC(), fd, region.lengthBytes());
            regions.put(region.regionId(), mapped);
            partlyMapped.add(mapped);
        } finally {
            libC().close(fd);
        }
    }

    @Override
    protected int serve(long nowNs) {
        int work = advanceLongPage() + reportPushed();
        if (copyFault != null) {
            lose(TransferFault.PROTOCOL, copyFault);
        }
        return work == 0 && (isRingFull() || mapAhead()) ? LOOK_SOON : work;
    }

    /** Returns the amount of work: one piece, or the push that ends the page, if the ring has room. */
    private int advanceLongPage() {
        if (!longPage.isUnderWay()) {
            return 0;
        }
        boolean copying = !longPage.isCopied();
        longPage.advance();
        if (!longPage.isCopied() || !hasRoom()) {
            return copying ? 1 : 0;
        }
        push(longPage.imm(), longPage.postId());
        longPage.end();
        return 1;
    }

    /** Populates a few pages for later writes; returns whether there are more. */
    private boolean mapAhead() {
        MappedFile next = partlyMapped.peek();
        if (next != null && !next.mapNextAhead()) {
            partlyMapped.remove();
        }
        return next != null;
    }

    @Override
    public int post(WriteBatch batch, long postId) {
        if (!isOpen() || copyFault != null || wanted.isWaiting() || !hasRoom()) {
            return 0;
        }
        if (batch.pageCount() > 0 && !findRegion(batch.regionId())) {
            return 0;
        }
        int units = batch.limit(BATCH_PAGES_MAX, BATCH_BYTES, Imm.WEIGHT_MAX);
        if (batch.payloadBytes() > LongPage.PIECE_BYTES) {
            return begin(batch, postId) ? units : 0;
        }
        if (!copy(batch)) {
            return 0;
        }
        push(immOf(batch), postId);
        return units;
    }

    /** Begins a page that is copied in pieces; false while another one is. */
    private boolean begin(WriteBatch batch, long postId) {
        long to = batch.targetOffsetBytes(0);
        if (longPage.isUnderWay() || !isInside(to, batch.payloadBytes(), batch.regionId())) {
            return false;
        }
        longPage.begin(
                batch.source(), batch.sourceOffsetBytes(0), regions.get(batch.regionId()), to, batch.payloadBytes());
        longPage.owe(immOf(batch), postId);
        return true;
    }

    /** Whether a range lies in the region just found; if not, the path is lost. */
    private boolean isInside(long offset, long lengthBytes, int regionId) {
        boolean inside = offset >= 0 && offset <= lastRegion.byteSize() - lengthBytes;
        if (!inside) {
            copyFault = "the peer's region " + regionId + " is shorter than it said";
        }
        return inside;
    }

    /** Finds the mapping of a region, or requests the region from the peer. */
    private boolean findRegion(int regionId) {
        if (lastRegion != null && lastRegionId == regionId) {
            return true;
        }
        MappedFile region = regions.get(regionId);
        if (region != null) {
            lastRegionId = regionId;
            lastRegion = region.memory();
            return true;
        }
        wanted.want(regionId);
        return false;
    }

    private boolean copy(WriteBatch batch) {
        MemorySegment source = batch.source();
        MappedFile target = regions.get(batch.regionId());
        int runLength;
        for (int i = 0; i < batch.pageCount(); i += runLength) {
            runLength = batch.runLength(i);
            long runBytes = runLength * batch.pageBytes();
            long to = batch.targetOffsetBytes(i);
            if (!isInside(to, runBytes, batch.regionId())) {
                copier.drop();
                return false;
            }
            target.mapAhead(to, runBytes);
            copier.add(source, batch.sourceOffsetBytes(i), lastRegion, to, runBytes);
        }
        copier.finish();
        return true;
    }

    @Override
    protected void release() {
        lastRegion = null;
        longPage.end();
        regions.values().forEach(MappedFile::close);
        regions.clear();
        partlyMapped.clear();
        releaseRing();
    }
}
