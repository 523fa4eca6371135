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
 * One admitted peer that maps this engine's memory: hands out descriptors and takes immediates from its ring.
 *
 * <p>Worker only. What proves that the peer writes no more is its word, or the end of its control socket: its engine unmaps
 * before either. Where a device writes, the end of the socket says as much only behind the peer's word that it is quiet, else the end of
 * its process does. A peer that has not said that it is ready was handed no memory.
 */
public final class RingInboundPaths implements InboundPaths {
    /** What one duty cycle may take before other peers get theirs. */
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
    /** Until the peer has it. */
    private int ringFd;

    private boolean offersMore;
    private boolean quiet;
    private boolean ready;
    private boolean stopped;
    private boolean broken;
    private boolean gone;
    private boolean closed;

    /**
     * @param byDevice whether the peer writes by a device, which a hang-up does not stop: then its word does, or its process's end
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
        if (channel.tell(SameHostRecord.ACCEPTED, MemorySegment.NULL, ringFd, wakeDescriptor)) {
            libC.close(ringFd);
            ringFd = NONE;
        }
    }

    /** Takes what has arrived; returns how many immediates. */
    int poll(long nowNs) {
        if (closed || broken) {
            return 0;
        }
        try {
            return advance(nowNs);
        } catch (RuntimeException | Error error) {
            // Nothing is taken from the peer any more, but it may still write.
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

    /** Whether there was no room for all that the peer may map: nothing tells when there is. */
    boolean offersMore() {
        return offersMore && !closed && !broken && !stopped;
    }

    boolean isClosed() {
        return closed;
    }

    /** What the peer wrote before it went has arrived. */
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
