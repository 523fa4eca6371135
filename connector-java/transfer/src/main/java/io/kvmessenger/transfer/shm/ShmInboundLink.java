package io.kvmessenger.transfer.shm;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.socket.ControlStream;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Notice;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundLink;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.RemoteKey;
import java.lang.foreign.MemorySegment;
import java.util.function.IntFunction;
import java.util.function.IntUnaryOperator;

/**
 * One admitted peer that maps our memory: hands out descriptors and takes immediates from its ring.
 *
 * <p>Worker only. Two things prove that the peer writes no more. Its socket ends: its engine unmaps before it closes the
 * socket, and the kernel closes a dead process's sockets after its last thread has ended. Or its process has ended,
 * although a child may still hold the socket: no child has its mappings. Without proof the admission does not end,
 * however long it takes.
 */
final class ShmInboundLink implements InboundLink, ControlStream.Reader, DeathWatch.Events {
    /** What one turn may take before other peers get theirs. */
    private static final int TURN_IMMS = 4096;

    private final InboundPort port;
    /** By the region's id. */
    private final IntFunction<RemoteKey> keys;

    private final InboundAdmission from;
    private final Figures figures;
    private final ControlStream control;
    private final DeathWatch death;
    private final MappedFile ringFile;
    private final ImmRing ring;
    private final long readyDeadlineNs;
    private boolean ready;
    private boolean dismissed;
    private boolean broken;
    private boolean closed;

    /**
     * Takes the socket over.
     *
     * @throws IllegalStateException when the operating system refuses memory or a descriptor; the socket stays the
     *     caller's, and the admission free
     */
    ShmInboundLink(
            EventLoop loop,
            InboundPort port,
            IntFunction<RemoteKey> keys,
            InboundAdmission from,
            Figures figures,
            int controlFd,
            long readyDeadlineNs,
            IntUnaryOperator deathOfPeer) {
        this.port = port;
        this.keys = keys;
        this.from = from;
        this.figures = figures;
        this.readyDeadlineNs = readyDeadlineNs;
        int fd = MappedFile.createFile(loop.libC(), "kvm-imm-ring", ImmRing.LENGTH_BYTES);
        try {
            ringFile = MappedFile.map(loop.libC(), fd, ImmRing.LENGTH_BYTES);
            ring = new ImmRing(ringFile.memory());
            control = open(loop, controlFd);
            from.claim(this);
            control.offerDescriptors(ControlStream.ACCEPTED, MemorySegment.NULL, fd, loop.wakeDescriptor());
        } finally {
            loop.libC().close(fd);
        }
        death = new DeathWatch(loop, deathOfPeer.applyAsInt(controlFd), this);
    }

    private ControlStream open(EventLoop loop, int controlFd) {
        try {
            return new ControlStream(loop, controlFd, this, 0);
        } catch (IllegalStateException e) {
            ringFile.close();
            throw e;
        }
    }

    /** Takes what has arrived; returns how many immediates, or -1 when the link is over. */
    int doWork(long nowNs) {
        try {
            return advance(nowNs);
        } catch (RuntimeException | Error error) {
            onError(error);
            return 1;
        }
    }

    private int advance(long nowNs) {
        if (closed) {
            return -1;
        }
        if (!ready && nowNs - readyDeadlineNs > 0) {
            close("the peer did not map its ring in time");
            return -1;
        }
        if (broken) {
            return 0;
        }
        control.resume(nowNs);
        return closed ? -1 : drain();
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
        if (!ring.isSound() && !dismissed) {
            figures.increment(TransferCounter.PATHS_REJECTED);
            dismiss(TransferFault.PROTOCOL, "the ring's position is impossible");
        }
        return count;
    }

    @Override
    public boolean onRecord(int type, MemorySegment payload, long nowNs) {
        return switch (type) {
            case ControlStream.READY -> {
                ready = true;
                figures.increment(TransferCounter.PATHS_OPENED);
                yield true;
            }
            case ControlStream.MESSAGE -> dismissed || port.onMessage(from, payload);
            case ControlStream.REGION_WANTED -> answer(RegionRecord.parse(payload));
            default -> {
                figures.increment(TransferCounter.PATHS_REJECTED);
                dismiss(TransferFault.PROTOCOL, "unexpected control record " + type);
                yield true;
            }
        };
    }

    private boolean answer(RegionRecord wanted) {
        if (wanted == null || dismissed) {
            return true;
        }
        RemoteKey key = keys.apply(wanted.regionId());
        if (key == null) {
            RegionRecord none = new RegionRecord(wanted.regionId(), RegionRecord.NOT_SHAREABLE);
            return control.offer(ControlStream.REGION, none.encode());
        }
        return control.offerDescriptors(
                ControlStream.REGION,
                new RegionRecord(wanted.regionId(), key.lengthBytes()).encode(),
                key.descriptor());
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
    public void revoke(String detail) {
        dismiss(TransferFault.DISCONNECTED, detail);
    }

    /** Asks the peer to stop; only the end of its socket tells that it has. */
    private void dismiss(TransferFault fault, String detail) {
        if (!dismissed) {
            dismissed = true;
            control.offer(ControlStream.NOTICE, new Notice(fault, detail).encode());
            control.finish();
        }
    }

    @Override
    public void onEnd(String detail, boolean garbage) {
        if (garbage) {
            figures.increment(TransferCounter.PATHS_REJECTED);
            // The stream cannot be followed any more, but the peer may still write: its hang-up is what counts.
            dismiss(TransferFault.PROTOCOL, detail);
            control.discard();
            return;
        }
        close(detail);
    }

    @Override
    public void onDeath(long nowNs) {
        // What it said before it died has arrived.
        control.drain(nowNs);
        close("the peer's process has ended");
    }

    /** Nothing is taken from the peer any more, but it may still write: its hang-up is what counts. */
    @Override
    public void onError(Throwable error) {
        if (broken) {
            // Even the little that is left to do fails: the worker cannot go on with it.
            throw new IllegalStateException("the link of " + from.admission().peerName() + " failed twice", error);
        }
        broken = true;
        dismiss(TransferFault.DISCONNECTED, LinkError.describe(error));
        if (!closed) {
            control.discard();
        }
    }

    private void close(String detail) {
        if (closed) {
            return;
        }
        closed = true;
        // What the peer wrote before it went has arrived.
        for (int left = ImmRing.CAPACITY; !broken && left > 0 && drain() > 0; ) {
            left -= TURN_IMMS;
        }
        death.close();
        control.close();
        ringFile.close();
        if (ready || dismissed) {
            figures.increment(TransferCounter.PATHS_LOST);
            port.onClosed(from, detail);
        } else {
            from.giveBack();
        }
    }

    /** Closes everything for the end of the engine. No admission ends by it: the peer may still be writing. */
    void abandon() {
        if (!closed) {
            closed = true;
            death.close();
            control.close();
            ringFile.close();
        }
    }
}
