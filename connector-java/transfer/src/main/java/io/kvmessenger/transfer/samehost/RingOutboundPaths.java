package io.kvmessenger.transfer.samehost;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.path.OwedRecord;
import io.kvmessenger.transfer.path.WriterPaths;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.PeerChannel;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.MemorySegment;

/**
 * One peer whose memory this engine maps: pushes immediates to the peer's ring, when their pages are in place.
 *
 * <p>Worker only. A write is reported as sent in the duty cycle after its immediate was pushed. What was not pushed
 * before a loss does not count, and is written again by another path.
 */
public abstract class RingOutboundPaths extends WriterPaths implements Endpoint {
    /** Limit on writes that are pushed and not yet reported as sent. */
    private static final int PUSHED_MAX = 1 << 10;

    private final LibC libC;
    private final OwedRecord mapped;
    private PeerRing ring;
    private final long[] pushed = new long[PUSHED_MAX];
    private int pushedCount;
    private boolean ringFull;

    protected RingOutboundPaths(
            LibC libC, OutboundChannel channel, PathEvents events, Figures figures, long connectDeadlineNs) {
        super(channel, events, figures, connectDeadlineNs);
        this.libC = libC;
        mapped = new OwedRecord(() -> channel.report(SameHostRecord.READY, MemorySegment.NULL));
    }

    protected final LibC libC() {
        return libC;
    }

    /** The peer has sent its ring. */
    protected final void onAccepted() {
        if (ring != null) {
            throw new IllegalArgumentException("the peer accepted twice");
        }
        ring = PeerRing.accept(libC, channel());
        mapped.send();
    }

    protected final boolean hasRing() {
        return ring != null;
    }

    /** Sends the peer that its ring is mapped; returns whether it has been sent. */
    protected final boolean sendMapped() {
        return hasRing() && mapped.send();
    }

    /** Requests a region from the peer; false without room for the request. */
    protected final boolean askFor(int regionId) {
        return channel().report(SameHostRecord.REGION_WANTED, new RegionRecord(regionId, 0).encode());
    }

    /** Whether an immediate can be pushed now. */
    protected final boolean hasRoom() {
        ringFull = !ring.hasRoom();
        return !ringFull && !isBacklogged();
    }

    /** Whether the writes pushed must be reported first. */
    protected final boolean isBacklogged() {
        return pushedCount == PUSHED_MAX;
    }

    /** Whether the last write found the ring full. */
    protected final boolean isRingFull() {
        return ringFull;
    }

    /** Pushes the immediate of a write whose pages are in place; there must be room. */
    protected final void push(int imm, long postId) {
        ring.push(imm);
        pushed[pushedCount++] = postId;
    }

    protected static int immOf(WriteBatch batch) {
        return Imm.withWeight(batch.window(), (int) batch.weight());
    }

    /** Wakes the target for what was pushed since the last call, and reports it as sent; returns the number. */
    protected final int reportPushed() {
        int count = pushedCount;
        pushedCount = 0;
        if (count > 0) {
            ring.wake();
        }
        for (int i = 0; i < count && !isClosed(); i++) {
            sent(pushed[i]);
        }
        return count;
    }

    @Override
    protected final Endpoint settle() {
        reportPushed();
        return this;
    }

    /**
     * Shows the peer that nothing is written any more, by a device neither. The record alone could find the control
     * socket full, or be discarded with what waits there when the link closes; earlier releases read only the record.
     */
    protected final void showQuiet() {
        if (ring != null) {
            ring.showQuiet();
        }
        channel().report(PeerChannel.QUIET_KIND, MemorySegment.NULL);
    }

    /** Unmaps the ring: nothing is pushed any more. */
    protected final void releaseRing() {
        if (ring != null) {
            ring.close();
        }
    }
}
