package io.kvmessenger.transfer.cuda;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.samehost.PeerRing;
import io.kvmessenger.transfer.samehost.RegionRecord;
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

/**
 * One peer whose device memory this engine maps: queues copies, and pushes their immediate when they are done, never
 * before.
 *
 * <p>Worker only. A write is reported as sent when its immediate is pushed: until then its source is read. Once closed,
 * no copy runs, so source and target may be reused; what was copied without an immediate does not count, and is written
 * again by another path. Closing waits for at most the copies that {@link CopyQueue} holds.
 */
final class CudaOutboundPaths implements OutboundPaths, Endpoint, PeerChannel.Reader {
    /** Largest number of scattered copies in one driver call. */
    private static final int BATCH_PAGES_MAX = 512;

    private static final long BATCH_BYTES = 2 << 20;
    /** Limit on writes reported as sent in one duty cycle, and on writes completed at once and not yet reported. */
    private static final int SENT_MAX = 1 << 10;

    private final LibC libC;
    private final OutboundChannel channel;
    private final PathEvents events;
    private final Figures figures;
    private final long connectDeadlineNs;
    private final PeerMemories memories;
    private final BatchCopier copier;
    private PeerRing ring;
    /** Whether the peer has been sent that its ring is mapped. */
    private boolean readySent;
    /** Only a peer that takes immediates from the ring offers its memory. */
    private boolean allOffered;

    private boolean open;
    private final long[] sent = new long[SENT_MAX];
    private int sentCount;
    private boolean ringFull;
    private TransferFault fault;
    private String faultDetail;
    /** The region that was requested and not answered yet; 0 = no request is open. */
    private int wantedRegionId;

    private boolean closed;

    /** @throws IllegalStateException when the peer has been asked too often */
    CudaOutboundPaths(
            LibC libC,
            OutboundChannel channel,
            PathEvents events,
            Figures figures,
            long connectDeadlineNs,
            PeerMemories memories,
            BatchCopier copier) {
        this.libC = libC;
        this.channel = channel;
        this.events = events;
        this.figures = figures;
        this.connectDeadlineNs = connectDeadlineNs;
        this.memories = memories;
        this.copier = copier;
        if (!channel.open(MemorySegment.NULL, this)) {
            throw new IllegalStateException("the peer was asked for too many paths");
        }
    }

    @Override
    public void onRecord(int kind, MemorySegment payload, long nowNs) {
        try {
            hear(kind, payload);
        } catch (IllegalArgumentException e) {
            lose(TransferFault.PROTOCOL, e.getMessage());
        } catch (IllegalStateException e) {
            lose(TransferFault.UNREACHABLE, "the peer's memory cannot be mapped: " + e.getMessage());
        }
    }

    private void hear(int kind, MemorySegment payload) {
        switch (kind) {
            case SameHostRecord.ACCEPTED -> onAccepted();
            case SameHostRecord.REGION -> onNoRegion(RegionRecord.parse(payload));
            case SameHostRecord.REGION_OFFERED -> {
                int fd = channel.takeDescriptor();
                closeAfter(fd, () -> memories.addFile(RegionRecord.parse(payload), fd));
            }
            case CudaRecord.DEVICE_OFFERED -> memories.addDevice(DeviceRecord.parse(payload));
            case CudaRecord.PART -> {
                int fd = channel.takeDescriptor();
                closeAfter(fd, () -> memories.addPart(PartRecord.parse(payload), fd));
            }
            case SameHostRecord.ALL_OFFERED -> allOffered = true;
            default -> throw new IllegalArgumentException("unexpected control record " + kind);
        }
    }

    private void closeAfter(int fd, Runnable use) {
        try {
            use.run();
        } finally {
            if (fd >= 0) {
                libC.close(fd);
            }
        }
    }

    private void onAccepted() {
        if (ring != null) {
            throw new IllegalArgumentException("the peer accepted twice");
        }
        ring = PeerRing.accept(libC, channel);
        sendReady();
    }

    private void sendReady() {
        readySent = readySent || channel.report(SameHostRecord.READY, MemorySegment.NULL);
    }

    private void onNoRegion(RegionRecord region) {
        if (region == null || region.regionId() != wantedRegionId) {
            throw new IllegalArgumentException("the peer answered for a region that was not asked for");
        }
        lose(
                TransferFault.WRITE_REFUSED,
                "the peer's region " + region.regionId()
                        + " cannot be mapped by this process; register memory that can be exported");
    }

    @Override
    public void onRefused(TransferFault refusal, String detail) {
        lose(refusal, detail);
    }

    @Override
    public void onError(Throwable error) {
        lose(TransferFault.DISCONNECTED, LinkError.describe(error));
    }

    private void lose(TransferFault why, String detail) {
        if (closed) {
            return;
        }
        boolean wasOpen = open;
        reportSent();
        if (closed) {
            return;
        }
        close();
        if (wasOpen) {
            events.onPathLost(this);
        }
        events.onFailed(why, detail);
    }

    @Override
    public int doWork(long nowNs) {
        if (closed) {
            return 0;
        }
        if (!open) {
            return connect(nowNs);
        }
        int work = 0;
        if (fault == null) {
            try {
                work = pushDone();
            } catch (DeviceFault e) {
                fail(TransferFault.DISCONNECTED, e.getMessage());
            }
        }
        reportSent();
        if (fault != null) {
            lose(fault, faultDetail);
        }
        return work == 0 && (ringFull || copier.isBusy()) ? LOOK_SOON : work;
    }

    private int connect(long nowNs) {
        if (ring != null) {
            sendReady();
        }
        if (ring != null && allOffered && !memories.isIncomplete()) {
            try {
                memories.grantAccess();
            } catch (DeviceFault e) {
                lose(TransferFault.UNREACHABLE, "this process's device does not reach the peer's: " + e.getMessage());
                return 1;
            }
            open = true;
            figures.increment(TransferCounter.PATHS_OPENED);
            events.onReady();
            events.onPathOpened(this);
            return 1;
        }
        if (nowNs - connectDeadlineNs > 0) {
            lose(TransferFault.UNREACHABLE, "the peer did not hand over its memory in time");
        }
        return 0;
    }

    /** Queues what was posted, and pushes the immediates of writes whose copies are done. */
    private int pushDone() {
        int work = sentCount;
        for (CopyQueue queue : copier.queues()) {
            if (queue == null) {
                continue;
            }
            queue.mark();
            while (sentCount < SENT_MAX && !queue.isEmpty() && ring.hasRoom() && queue.isHeadDone()) {
                ring.push(queue.headImm());
                sent[sentCount++] = queue.removeHead();
                work++;
            }
        }
        return work;
    }

    /** Wakes the target for what was pushed since the last duty cycle, and reports it to the engine. */
    private void reportSent() {
        int count = sentCount;
        sentCount = 0;
        if (count > 0) {
            ring.wake();
        }
        for (int i = 0; i < count && !closed; i++) {
            events.onSent(sent[i]);
        }
    }

    private void fail(TransferFault why, String detail) {
        fault = why;
        faultDetail = detail;
    }

    @Override
    public int post(WriteBatch batch, long postId) {
        if (closed || fault != null || sentCount == SENT_MAX) {
            return 0;
        }
        if (batch.pageCount() == 0) {
            return pushNow(batch, postId) ? batch.unitCount() : 0;
        }
        PeerMemory target = find(batch.regionId());
        if (target == null) {
            return 0;
        }
        try {
            return copy(batch, postId, target);
        } catch (DeviceFault e) {
            fail(TransferFault.DISCONNECTED, e.getMessage());
            return 0;
        }
    }

    private int copy(WriteBatch batch, long postId, PeerMemory target) {
        CopyQueue queue = copier.queueFor(batch, target);
        ringFull = queue == null && !ring.hasRoom();
        if (ringFull || (queue != null && !queue.hasRoom())) {
            return 0;
        }
        int taken = batch.limit(BATCH_PAGES_MAX, BATCH_BYTES, Imm.WEIGHT_MAX);
        if (!copier.copy(batch, target)) {
            fail(TransferFault.PROTOCOL, "the peer's region " + batch.regionId() + " is shorter than it said");
            return 0;
        }
        if (queue != null) {
            queue.posted(postId, immOf(batch), batch.payloadBytes());
        } else {
            pushNow(batch, postId);
        }
        return taken;
    }

    /** Pushes the immediate of a write that is in place already; false when the ring is full. */
    private boolean pushNow(WriteBatch batch, long postId) {
        ringFull = !ring.push(immOf(batch));
        if (!ringFull) {
            sent[sentCount++] = postId;
        }
        return !ringFull;
    }

    private static int immOf(WriteBatch batch) {
        return Imm.withWeight(batch.window(), (int) batch.weight());
    }

    /** The peer's region; null if it is not mapped yet, and then it is requested from the peer. */
    private PeerMemory find(int regionId) {
        PeerMemory found = memories.find(regionId);
        if (found == null
                && wantedRegionId != regionId
                && !memories.has(regionId)
                && channel.report(SameHostRecord.REGION_WANTED, new RegionRecord(regionId, 0).encode())) {
            wantedRegionId = regionId;
        }
        return found;
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        copier.close();
        memories.close();
        channel.report(PeerChannel.QUIET_KIND, MemorySegment.NULL);
        if (ring != null) {
            ring.close();
        }
        if (open) {
            figures.increment(TransferCounter.PATHS_LOST);
        }
    }
}
