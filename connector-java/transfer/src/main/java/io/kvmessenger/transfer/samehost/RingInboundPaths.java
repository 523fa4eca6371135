package io.kvmessenger.transfer.samehost;

import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.path.ReaderPaths;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPort;
import java.lang.foreign.MemorySegment;

/**
 * One admitted peer that maps this engine's memory: sends descriptors to it and takes immediates from its ring.
 *
 * <p>Worker only. The proof that the peer writes no more is its confirmation, or the end of its control socket, as its
 * engine unmaps before either. If a device writes, the end of the socket is a proof only after the peer's confirmation;
 * otherwise the end of its process is. The confirmation is in the ring, or a record. A peer that has not reported ready has been given no memory.
 */
public final class RingInboundPaths extends ReaderPaths {
    /** Immediates that one duty cycle may take before other peers are served. */
    private static final int TURN_IMMS = 4096;

    private static final int NONE = -1;

    private final LibC libC;
    private final int wakeDescriptor;
    private final RegionSender regions;
    private final MappedFile ringFile;
    private final ImmRing ring;
    private final boolean byDevice;
    /** Valid until it has been sent to the peer. */
    private int ringFd;

    private boolean offersMore;
    private boolean quiet;
    private boolean stopped;
    /** Nothing is accepted from the peer any more, but it may still write. */
    private boolean broken;

    /**
     * @param byDevice whether the peer writes by a device, which a hang-up does not stop: then its confirmation counts,
     *     or the end of its process
     * @throws IllegalStateException when the operating system refuses memory or a descriptor
     */
    public RingInboundPaths(
            EventLoop loop,
            InboundPort port,
            RegionSender regions,
            InboundAdmission from,
            Figures figures,
            InboundChannel channel,
            boolean byDevice,
            long readyDeadlineNs) {
        super(port, from, figures, channel, readyDeadlineNs);
        libC = loop.libC();
        wakeDescriptor = loop.wakeDescriptor();
        this.regions = regions;
        this.byDevice = byDevice;
        ringFd = ForeignMemory.createFile(libC, "kvm-imm-ring", ImmRing.LENGTH_BYTES);
        try {
            ringFile = MappedFile.map(libC, ringFd, ImmRing.LENGTH_BYTES);
        } catch (IllegalStateException e) {
            libC.close(ringFd);
            throw e;
        }
        ring = new ImmRing(ringFile.memory());
        try {
            handOver();
        } catch (IllegalStateException e) {
            release();
            throw e;
        }
    }

    private void handOver() {
        if (channel().report(SameHostRecord.ACCEPTED, MemorySegment.NULL, ringFd, wakeDescriptor)) {
            libC.close(ringFd);
            ringFd = NONE;
        }
    }

    @Override
    protected int advance(long nowNs) {
        if (broken) {
            return 0;
        }
        boolean sound = false;
        try {
            if (ringFd != NONE) {
                handOver();
            }
            offersMore = isReady() && !stopped && !regions.offer(channel());
            int count = isClosed() ? 0 : drain();
            sound = true;
            return count;
        } finally {
            broken |= !sound;
        }
    }

    @Override
    protected String overdue() {
        return "the peer did not map its ring in time";
    }

    /** Whether regions remain to be offered for lack of room. */
    @Override
    protected boolean waits() {
        return offersMore && !stopped;
    }

    private int drain() {
        int count = 0;
        while (count < TURN_IMMS) {
            int imm = ring.take();
            if (imm == ImmRing.EMPTY) {
                break;
            }
            port().onArrived(from(), imm, Imm.weight(imm));
            count++;
        }
        if (!ring.isSound() && !stopped) {
            reject(TransferFault.PROTOCOL, "the ring's position is impossible");
        }
        return count;
    }

    @Override
    public boolean onRecord(int kind, MemorySegment payload, long nowNs) {
        if (kind == SameHostRecord.READY && !isReady()) {
            countOpened();
            becomeReady();
            return true;
        }
        RegionRecord wanted = kind == SameHostRecord.REGION_WANTED ? RegionRecord.parse(payload) : null;
        if (wanted == null || !isReady()) {
            reject(TransferFault.PROTOCOL, "unexpected control record " + kind);
            return true;
        }
        return stopped || regions.answer(wanted.regionId(), channel());
    }

    /** The worker is about to sleep: from now on a push wakes it. */
    public void park() {
        if (!isClosed()) {
            ring.park();
        }
    }

    public void unpark() {
        if (!isClosed()) {
            ring.unpark();
        }
    }

    @Override
    public void onQuiet() {
        quiet = true;
    }

    @Override
    public boolean outlivesHangUp() {
        return byDevice && isReady() && !quiet && !ring.isQuiet();
    }

    @Override
    public void stop() {
        stopped = true;
    }

    @Override
    public void onPeerGone() {
        super.onPeerGone();
        close();
    }

    @Override
    public boolean isOver() {
        return isPeerGone() || !isReady();
    }

    /** Takes everything that the peer pushed before it went. */
    @Override
    protected void endLanding() {
        boolean sound = false;
        try {
            for (int left = ImmRing.CAPACITY; !broken && left > 0 && drain() > 0; ) {
                left -= TURN_IMMS;
            }
            sound = true;
        } finally {
            broken |= !sound;
        }
    }

    @Override
    protected void release() {
        ringFile.close();
        if (ringFd != NONE) {
            libC.close(ringFd);
            ringFd = NONE;
        }
    }
}
