package io.kvmessenger.transfer.samehost;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import io.kvmessenger.transfer.spi.InboundPort;
import java.lang.foreign.MemorySegment;

/**
 * One admitted peer that maps this engine's memory: sends descriptors to it and takes immediates from its ring.
 *
 * <p>Worker only. The proof that the peer writes no more is its confirmation, or the end of its control socket, as its
 * engine unmaps before either. If a device writes, the end of the socket is a proof only after the peer's confirmation;
 * otherwise the end of its process is. A peer that has not reported ready has been given no memory.
 */
public final class RingInboundPaths implements InboundPaths {
    /** Immediates that one duty cycle may take before other peers are served. */
    private static final int TURN_IMMS = 4096;

    private static final int NONE = -1;

    private final LibC libC;
    private final int wakeDescriptor;
    private final InboundPort port;
    private final RegionSender regions;
    private final InboundAdmission from;
    private final Figures figures;
    private final InboundChannel channel;
    private final MappedFile ringFile;
    private final ImmRing ring;
    private final boolean byDevice;
    private final long readyDeadlineNs;
    /** Valid until it has been sent to the peer. */
    private int ringFd;

    private boolean offersMore;
    private boolean quiet;
    private boolean ready;
    private boolean stopped;
    private boolean broken;
    private boolean gone;
    private boolean closed;

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
        libC = loop.libC();
        wakeDescriptor = loop.wakeDescriptor();
        this.port = port;
        this.regions = regions;
        this.from = from;
        this.figures = figures;
        this.channel = channel;
        this.byDevice = byDevice;
        this.readyDeadlineNs = readyDeadlineNs;
        ringFd = MappedFile.createFile(libC, "kvm-imm-ring", ImmRing.LENGTH_BYTES);
        try {
            ringFile = MappedFile.map(libC, ringFd, ImmRing.LENGTH_BYTES);
        } catch (IllegalStateException e) {
            libC.close(ringFd);
            throw e;
        }
        ring = new ImmRing(ringFile.memory());
        handOver();
    }

    private void handOver() {
        if (channel.report(SameHostRecord.ACCEPTED, MemorySegment.NULL, ringFd, wakeDescriptor)) {
            libC.close(ringFd);
            ringFd = NONE;
        }
    }

    /** Takes what has arrived; returns the number of immediates. */
    int poll(long nowNs) {
        if (closed || broken) {
            return 0;
        }
        try {
            return advance(nowNs);
        } catch (RuntimeException | Error error) {
            // Nothing is accepted from the peer any more, but it may still write.
            broken = true;
            channel.onError(error);
            return 1;
        }
    }

    private int advance(long nowNs) {
        if (ringFd != NONE) {
            handOver();
        }
        if (!ready && nowNs - readyDeadlineNs > 0) {
            close();
            channel.onOver("the peer did not map its ring in time");
            return 0;
        }
        if (ready && !stopped) {
            offersMore = !regions.offer(channel);
        }
        return drain();
    }

    private int drain() {
        int count = 0;
        while (count < TURN_IMMS) {
            int imm = ring.take();
            if (imm == ImmRing.EMPTY) {
                break;
            }
            port.onArrived(from, imm, Imm.weight(imm));
            count++;
        }
        if (!ring.isSound() && !stopped) {
            figures.increment(TransferCounter.PATHS_REJECTED);
            channel.dismiss(TransferFault.PROTOCOL, "the ring's position is impossible");
        }
        return count;
    }

    @Override
    public boolean onRecord(int kind, MemorySegment payload, long nowNs) {
        if (kind == SameHostRecord.READY && !ready) {
            ready = true;
            figures.increment(TransferCounter.PATHS_OPENED);
            channel.onReady();
            return true;
        }
        RegionRecord wanted = kind == SameHostRecord.REGION_WANTED ? RegionRecord.parse(payload) : null;
        if (wanted == null || !ready) {
            figures.increment(TransferCounter.PATHS_REJECTED);
            channel.dismiss(TransferFault.PROTOCOL, "unexpected control record " + kind);
            return true;
        }
        return stopped || regions.answer(wanted.regionId(), channel);
    }

    void park() {
        if (!closed) {
            ring.park();
        }
    }

    void unpark() {
        if (!closed) {
            ring.unpark();
        }
    }

    @Override
    public void onQuiet() {
        quiet = true;
    }

    @Override
    public boolean outlivesHangUp() {
        return byDevice && ready && !quiet && !closed;
    }

    @Override
    public void stop() {
        stopped = true;
    }

    @Override
    public void onPeerGone() {
        gone = true;
        close();
    }

    @Override
    public boolean isOver() {
        return closed || gone || !ready;
    }

    /** Whether regions remain to be offered for lack of room: no event signals when there is some. */
    boolean offersMore() {
        return offersMore && !closed && !broken && !stopped;
    }

    boolean isClosed() {
        return closed;
    }

    /** Takes everything that the peer pushed before it went. */
    private void drainAll() {
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
    public void close() {
        if (closed) {
            return;
        }
        drainAll();
        closed = true;
        ringFile.close();
        if (ringFd != NONE) {
            libC.close(ringFd);
            ringFd = NONE;
        }
        if (ready) {
            figures.increment(TransferCounter.PATHS_LOST);
        }
    }
}
