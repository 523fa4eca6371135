package io.kvmessenger.transfer.shm;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.StreamingCopy;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.samehost.MappedFile;
import io.kvmessenger.transfer.samehost.PeerRing;
import io.kvmessenger.transfer.samehost.RegionRecord;
import io.kvmessenger.transfer.samehost.RunCopier;
import io.kvmessenger.transfer.samehost.SameHostRecord;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.PeerChannel;
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
 * lost.
 */
final class ShmOutboundPaths implements OutboundPaths, Endpoint, PeerChannel.Reader {
    private static final int BATCH_PAGES_MAX = 256;
    private static final long BATCH_BYTES = 256 << 10;
    /** Limit on regions that are mapped before they are needed. */
    private static final int REGIONS_OFFERED_MAX = 64;
    /** Longest time for which the path stays closed while pages are populated: enough for some hundreds of MiB. */
    static final long MAPPED_FIRST_NS = 50_000_000;
    /** Batches copied and not yet reported as sent. */
    private static final int COPIED_MAX = 1 << 10;

    private final LibC libC;
    private final OutboundChannel channel;
    private final PathEvents events;
    private final Figures figures;
    private final long connectDeadlineNs;
    private final Map<Integer, MappedFile> regions = new HashMap<>();
    /** Regions whose pages are populated while idle. */
    private final ArrayDeque<MappedFile> partlyMapped = new ArrayDeque<>();

    private final RunCopier copier = new RunCopier(StreamingCopy.ofThisProcess());
    private PeerRing ring;
    /** Whether the peer has been sent that its ring is mapped. */
    private boolean readySent;
    /** Whether the peer has confirmed the ring. Before that it may have given up, and would leave the ring unread. */
    private boolean taken;

    private boolean allOffered;
    private long openDeadlineNs;
    private boolean open;
    private final long[] copied = new long[COPIED_MAX];
    private int copiedCount;
    private boolean ringFull;
    private String copyFault;
    private int wantedRegionId;
    private boolean waitingForRegion;
    private int lastRegionId;
    private MemorySegment lastRegion;
    private boolean closed;

    /** @throws IllegalStateException when the peer has been asked too often */
    ShmOutboundPaths(LibC libC, OutboundChannel channel, PathEvents events, Figures figures, long connectDeadlineNs) {
        this.libC = libC;
        this.channel = channel;
        this.events = events;
        this.figures = figures;
        this.connectDeadlineNs = connectDeadlineNs;
        if (!channel.open(MemorySegment.NULL, this)) {
            throw new IllegalStateException("the peer was asked for too many paths");
        }
    }

    @Override
    public void onRecord(int kind, MemorySegment payload, long nowNs) {
        switch (kind) {
            case SameHostRecord.ACCEPTED -> onAccepted(nowNs);
            case SameHostRecord.REGION -> onRegion(RegionRecord.parse(payload));
            case SameHostRecord.REGION_OFFERED -> onOffered(RegionRecord.parse(payload));
            case SameHostRecord.ALL_OFFERED -> {
                taken = true;
                allOffered = true;
            }
            default -> lose(TransferFault.PROTOCOL, "unexpected control record " + kind);
        }
    }

    private void onAccepted(long nowNs) {
        if (ring != null) {
            lose(TransferFault.PROTOCOL, "the peer accepted twice");
            return;
        }
        try {
            ring = PeerRing.accept(libC, channel);
        } catch (IllegalStateException e) {
            lose(TransferFault.UNREACHABLE, e.getMessage());
            return;
        }
        sendReady();
        openDeadlineNs = nowNs + MAPPED_FIRST_NS;
    }

    private void sendReady() {
        readySent = readySent || channel.report(SameHostRecord.READY, MemorySegment.NULL);
    }

    /**
     * Populates the next pages; opens the path when none are left, or at its deadline, and not before the peer has
     * shown that it takes immediates.
     */
    private int mapOrOpen(long nowNs) {
        sendReady();
        if (!taken && nowNs - connectDeadlineNs > 0) {
            lose(TransferFault.UNREACHABLE, "the peer did not take the mapped ring in time");
            return 1;
        }
        if (nowNs - openDeadlineNs < 0) {
            if (mapAhead()) {
                return 1;
            }
            if (!allOffered) {
                return LOOK_SOON;
            }
        }
        if (!taken) {
            return readySent ? 0 : LOOK_SOON;
        }
        open = true;
        figures.increment(TransferCounter.PATHS_OPENED);
        events.onReady();
        events.onPathOpened(this);
        return 1;
    }

    private void onRegion(RegionRecord region) {
        if (!waitingForRegion || (region != null && region.regionId() != wantedRegionId)) {
            lose(TransferFault.PROTOCOL, "the peer sent a region that was not asked for");
            return;
        }
        waitingForRegion = false;
        if (region != null && regions.containsKey(region.regionId())) {
            return; // it was offered meanwhile
        }
        if (region == null || region.lengthBytes() == RegionRecord.NOT_SHAREABLE) {
            lose(
                    TransferFault.WRITE_REFUSED,
                    "the peer's region " + (region == null ? "?" : region.regionId())
                            + " has no descriptor to map; register shareable memory, or leave shm out of the transports");
            return;
        }
        int fd = channel.takeDescriptor();
        if (fd < 0) {
            lose(TransferFault.PROTOCOL, "the peer sent no descriptor for region " + region.regionId());
            return;
        }
        try {
            MappedFile wanted = MappedFile.map(libC, fd, region.lengthBytes());
            regions.put(region.regionId(), wanted);
            partlyMapped.add(wanted);
        } catch (IllegalStateException e) {
            lose(TransferFault.UNREACHABLE, e.getMessage());
        } finally {
            libC.close(fd);
        }
    }

    /** Maps an offered region. If that fails, it is requested on its first write, and the failure is reported then. */
    private void onOffered(RegionRecord region) {
        taken = true;
        int fd = channel.takeDescriptor();
        if (fd < 0) {
            return;
        }
        try {
            if (region != null && regions.size() < REGIONS_OFFERED_MAX && !regions.containsKey(region.regionId())) {
                MappedFile offered = MappedFile.map(libC, fd, region.lengthBytes());
                regions.put(region.regionId(), offered);
                partlyMapped.add(offered);
            }
        } catch (IllegalStateException e) {
            figures.increment(TransferCounter.PATHS_REJECTED);
        } finally {
            libC.close(fd);
        }
    }

    @Override
    public void onRefused(TransferFault fault, String detail) {
        lose(fault, detail);
    }

    @Override
    public void onError(Throwable error) {
        lose(TransferFault.DISCONNECTED, LinkError.describe(error));
    }

    private void lose(TransferFault fault, String detail) {
        if (closed) {
            return;
        }
        boolean wasOpen = open;
        if (wasOpen) {
            report();
        }
        close();
        if (wasOpen) {
            events.onPathLost(this);
        }
        events.onFailed(fault, detail);
    }

    @Override
    public int doWork(long nowNs) {
        if (closed) {
            return 0;
        }
        if (ring == null) {
            if (nowNs - connectDeadlineNs > 0) {
                lose(TransferFault.UNREACHABLE, "the peer did not hand over its ring in time");
            }
            return 0;
        }
        if (!open) {
            return mapOrOpen(nowNs);
        }
        int work = report();
        if (copyFault != null) {
            lose(TransferFault.PROTOCOL, copyFault);
        }
        return work == 0 && (ringFull || mapAhead()) ? LOOK_SOON : work;
    }

    /** Populates a few pages for later writes; returns whether there are more. */
    private boolean mapAhead() {
        MappedFile next = closed ? null : partlyMapped.peek();
        if (next != null && !next.mapNextAhead()) {
            partlyMapped.remove();
        }
        return next != null;
    }

    /** Wakes the target for what was copied since the last duty cycle, and reports it to the engine. */
    private int report() {
        int count = copiedCount;
        if (count > 0) {
            ring.wake();
        }
        copiedCount = 0;
        for (int i = 0; i < count && !closed; i++) {
            events.onSent(copied[i]);
        }
        return count;
    }

    @Override
    public int post(WriteBatch batch, long postId) {
        if (closed || copyFault != null || waitingForRegion || copiedCount == COPIED_MAX) {
            return 0;
        }
        ringFull = !ring.hasRoom();
        if (ringFull || (batch.pageCount() > 0 && !findRegion(batch.regionId()))) {
            return 0;
        }
        int taken = batch.limit(BATCH_PAGES_MAX, BATCH_BYTES, Imm.WEIGHT_MAX);
        if (!copy(batch)) {
            return 0;
        }
        ring.push(Imm.withWeight(batch.window(), (int) batch.weight()));
        copied[copiedCount++] = postId;
        return taken;
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
        wantedRegionId = regionId;
        waitingForRegion = channel.report(SameHostRecord.REGION_WANTED, new RegionRecord(regionId, 0).encode());
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
            if (to < 0 || to > lastRegion.byteSize() - runBytes) {
                copyFault = "the peer's region " + batch.regionId() + " is shorter than it said";
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
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        lastRegion = null;
        regions.values().forEach(MappedFile::close);
        regions.clear();
        partlyMapped.clear();
        if (ring != null) {
            ring.close();
        }
        if (open) {
            figures.increment(TransferCounter.PATHS_LOST);
        }
    }
}
