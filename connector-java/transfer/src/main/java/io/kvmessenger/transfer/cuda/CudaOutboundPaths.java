package io.kvmessenger.transfer.cuda;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.samehost.RegionRecord;
import io.kvmessenger.transfer.samehost.RingOutboundPaths;
import io.kvmessenger.transfer.samehost.SameHostRecord;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PathEvents;
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
final class CudaOutboundPaths extends RingOutboundPaths {
    /** Largest number of scattered copies in one driver call. */
    private static final int BATCH_PAGES_MAX = 512;

    private static final long BATCH_BYTES = 2 << 20;

    private final PeerMemories memories;
    private final BatchCopier copier;
    /** Only a peer that takes immediates from the ring offers its memory. */
    private boolean allOffered;

    private TransferFault fault;
    private String faultDetail;
    /** The region that was requested and not answered yet; 0 = no request is open. */
    private int wantedRegionId;

    /** @throws IllegalStateException when the peer has been asked too often */
    CudaOutboundPaths(
            LibC libC,
            OutboundChannel channel,
            PathEvents events,
            Figures figures,
            long connectDeadlineNs,
            PeerMemories memories,
            BatchCopier copier) {
        super(libC, channel, events, figures, connectDeadlineNs);
        this.memories = memories;
        this.copier = copier;
        request(MemorySegment.NULL);
    }

    @Override
    protected void onPeerRecord(int kind, MemorySegment payload, long nowNs) {
        try {
            take(kind, payload);
        } catch (IllegalStateException e) {
            throw new IllegalStateException("the peer's memory cannot be mapped: " + e.getMessage(), e);
        }
    }

    private void take(int kind, MemorySegment payload) {
        switch (kind) {
            case SameHostRecord.ACCEPTED -> onAccepted();
            case SameHostRecord.REGION -> onNoRegion(RegionRecord.parse(payload));
            case SameHostRecord.REGION_OFFERED -> {
                int fd = channel().takeDescriptor();
                closeAfter(fd, () -> memories.addFile(RegionRecord.parse(payload), fd));
            }
            case CudaRecord.DEVICE_OFFERED -> memories.addDevice(DeviceRecord.parse(payload));
            case CudaRecord.PART -> {
                int fd = channel().takeDescriptor();
                closeAfter(fd, () -> memories.addPart(PartRecord.parse(payload), fd));
            }
            case SameHostRecord.ALL_OFFERED -> allOffered = true;
            default -> throw unexpected(kind);
        }
    }

    private void closeAfter(int fd, Runnable use) {
        try {
            use.run();
        } finally {
            if (fd >= 0) {
                libC().close(fd);
            }
        }
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
    protected int serve(long nowNs) {
        if (fault == null) {
            try {
                pushDone();
            } catch (DeviceFault e) {
                fail(TransferFault.DISCONNECTED, e.getMessage());
            }
        }
        int work = reportPushed();
        if (fault != null) {
            lose(fault, faultDetail);
        }
        return work == 0 && (isRingFull() || copier.isBusy()) ? LOOK_SOON : work;
    }

    @Override
    protected int connect(long nowNs) {
        sendMapped();
        if (!hasRing() || !allOffered || memories.isIncomplete()) {
            return 0;
        }
        try {
            memories.grantAccess();
        } catch (DeviceFault e) {
            lose(TransferFault.UNREACHABLE, "this process's device does not reach the peer's: " + e.getMessage());
            return 1;
        }
        open(this);
        return 1;
    }

    @Override
    protected String overdue() {
        return "the peer did not hand over its memory in time";
    }

    /** Queues what was posted, and pushes the immediates of writes whose copies are done. */
    private void pushDone() {
        for (CopyQueue queue : copier.queues()) {
            if (queue == null) {
                continue;
            }
            queue.mark();
            while (!queue.isEmpty() && hasRoom() && queue.isHeadDone()) {
                int imm = queue.headImm();
                push(imm, queue.removeHead());
            }
        }
    }

    private void fail(TransferFault why, String detail) {
        fault = why;
        faultDetail = detail;
    }

    @Override
    public int post(WriteBatch batch, long postId) {
        if (!isOpen() || fault != null || isBacklogged()) {
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
        if (queue == null ? !hasRoom() : !queue.hasRoom()) {
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
        boolean room = hasRoom();
        if (room) {
            push(immOf(batch), postId);
        }
        return room;
    }

    /** The peer's region; null if it is not mapped yet, and then it is requested from the peer. */
    private PeerMemory find(int regionId) {
        PeerMemory found = memories.find(regionId);
        if (found == null && wantedRegionId != regionId && !memories.has(regionId) && askFor(regionId)) {
            wantedRegionId = regionId;
        }
        return found;
    }

    @Override
    protected void release() {
        copier.close();
        memories.close();
        showQuiet();
        releaseRing();
    }
}
