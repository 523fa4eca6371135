package io.kvmessenger.transfer.shm;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.socket.ControlStream;
import io.kvmessenger.transfer.socket.Dialer;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.Notice;
import io.kvmessenger.transfer.spi.Batch;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.OutboundEvents;
import io.kvmessenger.transfer.spi.OutboundLink;
import io.kvmessenger.transfer.spi.Outbox;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.HashMap;
import java.util.Map;
import java.util.function.IntPredicate;

/**
 * One peer whose memory this engine maps: copies pages, then pushes their immediate.
 *
 * <p>Worker only. Regions are mapped when first written to. It never writes after its socket is closed.
 */
final class ShmOutboundLink implements OutboundLink, ControlStream.Reader {
    /** With its acceptance: the ring and what wakes the target. */
    private static final int DESCRIPTORS_MAX = 2;

    private static final int BATCH_PAGES_MAX = 256;
    private static final long BATCH_BYTES = 256 << 10;
    /** What one turn may copy before other peers get theirs. */
    private static final long TURN_BYTES = 2 << 20;

    private final EventLoop loop;
    private final LibC libC;
    private final String name;
    private final Outbox outbox;
    private final OutboundEvents events;
    private final Figures figures;
    private final long connectDeadlineNs;
    private final Map<Integer, MappedFile> regions = new HashMap<>();
    private final Batch batch = new Batch();
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment one = arena.allocateFrom(ValueLayout.JAVA_LONG, 1L);
    private Dialer dialer;
    private ControlStream control;
    private String connectFault;
    private MappedFile ringFile;
    private ImmRing ring;
    private int wakeFd = ControlStream.NO_DESCRIPTOR;
    private boolean holding;
    private boolean waitingForRegion;
    private int lastRegionId;
    private MemorySegment lastRegion;
    private boolean closed;

    ShmOutboundLink(
            EventLoop loop,
            String name,
            byte[] admissionKey,
            Outbox outbox,
            OutboundEvents events,
            Figures figures,
            long connectDeadlineNs,
            IntPredicate ofThisUser) {
        this.loop = loop;
        libC = loop.libC();
        this.name = name;
        this.outbox = outbox;
        this.events = events;
        this.figures = figures;
        this.connectDeadlineNs = connectDeadlineNs;
        int fd = loop.sockets().connectAbstract(name);
        if (fd >= 0 && !ofThisUser.test(fd)) {
            // It is told nothing: not even a proof, which it could pass on to the real target.
            libC.close(fd);
            connectFault = "the socket " + name + " belongs to another user";
            return;
        }
        dialer = new Dialer(
                loop, fd, name, asked -> Hello.answer(asked, name, Hello.CONTROL, 0, admissionKey), new Dialing());
    }

    /** What becomes of the socket before it is the control stream. */
    private final class Dialing implements Dialer.Events {
        @Override
        public void onConnected(int fd) {
            try {
                control = new ControlStream(loop, fd, ShmOutboundLink.this, DESCRIPTORS_MAX);
            } catch (IllegalStateException e) {
                libC.close(fd);
                connectFault = "connecting to " + name + ": " + e.getMessage();
            }
        }

        @Override
        public void onFailed(String detail) {
            lose(TransferFault.UNREACHABLE, detail);
        }
    }

    @Override
    public boolean onRecord(int type, MemorySegment payload, long nowNs) {
        switch (type) {
            case ControlStream.ACCEPTED -> onAccepted();
            case ControlStream.REGION -> onRegion(RegionRecord.parse(payload));
            case ControlStream.NOTICE -> {
                Notice notice = Notice.parse(payload);
                lose(notice.fault(), notice.detail());
            }
            default -> lose(TransferFault.PROTOCOL, "unexpected control record " + type);
        }
        return true;
    }

    private void onAccepted() {
        if (ring != null) {
            lose(TransferFault.PROTOCOL, "the peer accepted twice");
            return;
        }
        int ringFd = control.takeDescriptor();
        if (ringFd < 0) {
            lose(TransferFault.UNREACHABLE, "the ring's descriptor did not come through");
            return;
        }
        try {
            wakeFd = control.takeDescriptor();
            if (wakeFd < 0) {
                lose(TransferFault.UNREACHABLE, "the descriptor that wakes the peer did not come through");
                return;
            }
            ringFile = MappedFile.map(libC, ringFd, ImmRing.LENGTH_BYTES);
        } catch (IllegalStateException e) {
            lose(TransferFault.UNREACHABLE, e.getMessage());
            return;
        } finally {
            libC.close(ringFd);
        }
        ring = new ImmRing(ringFile.memory());
        control.offer(ControlStream.READY, MemorySegment.NULL);
        figures.pathsOpened.incrementAndGet();
        events.onReady();
    }

    private void onRegion(RegionRecord region) {
        if (!waitingForRegion || (region != null && region.regionId() != batch.regionId())) {
            lose(TransferFault.PROTOCOL, "the peer sent a region that was not asked for");
            return;
        }
        waitingForRegion = false;
        if (region == null || region.lengthBytes() == RegionRecord.NOT_SHAREABLE) {
            lose(
                    TransferFault.WRITE_REFUSED,
                    "the peer's region " + (region == null ? "?" : region.regionId())
                            + " has no descriptor to map; register shareable memory, or leave shm out of the transports");
            return;
        }
        int fd = control.takeDescriptor();
        if (fd < 0) {
            lose(TransferFault.PROTOCOL, "the peer sent no descriptor for region " + region.regionId());
            return;
        }
        try {
            regions.put(region.regionId(), MappedFile.map(libC, fd, region.lengthBytes()));
        } catch (IllegalStateException e) {
            lose(TransferFault.UNREACHABLE, e.getMessage());
        } finally {
            libC.close(fd);
        }
    }

    @Override
    public void onEnd(String detail, boolean garbage) {
        lose(garbage ? TransferFault.PROTOCOL : TransferFault.PEER_CLOSED, detail);
    }

    @Override
    public void onError(Throwable error) {
        lose(TransferFault.DISCONNECTED, LinkError.describe(error));
    }

    private void lose(TransferFault fault, String detail) {
        if (!closed) {
            close();
            events.onLost(fault, detail);
        }
    }

    @Override
    public int doWork(long nowNs) {
        if (closed) {
            return 0;
        }
        if (connectFault != null) {
            lose(TransferFault.UNREACHABLE, connectFault);
            return 1;
        }
        if (ring == null) {
            dialer.doWork();
            if (!closed && nowNs - connectDeadlineNs > 0) {
                lose(TransferFault.UNREACHABLE, "no answer in time");
            }
            return 0;
        }
        int work = control.sendAll(ControlStream.MESSAGE, outbox.messages());
        return waitingForRegion ? work : copyBatches(work);
    }

    private int copyBatches(int workBefore) {
        int work = workBefore;
        long turnBytes = TURN_BYTES;
        boolean full = false;
        while (!closed && turnBytes > 0 && (holding || cut())) {
            full = !ring.hasRoom();
            if (full || (batch.pageCount() > 0 && !findRegion()) || !copy()) {
                break;
            }
            turnBytes -= batch.payloadBytes();
            work++;
        }
        if (!closed && work > workBefore && ring.claimWake()) {
            libC.write(wakeFd, one, Long.BYTES);
        }
        return full && work == 0 ? LOOK_SOON : work;
    }

    private boolean cut() {
        holding = outbox.requests().cut(batch, BATCH_PAGES_MAX, BATCH_BYTES, Imm.WEIGHT_MAX);
        return holding;
    }

    /** Finds the mapping of the batch's region, or asks the peer for it. */
    private boolean findRegion() {
        if (lastRegion != null && lastRegionId == batch.regionId()) {
            return true;
        }
        MappedFile region = regions.get(batch.regionId());
        if (region != null) {
            lastRegionId = batch.regionId();
            lastRegion = region.memory();
            return true;
        }
        waitingForRegion = control.offer(ControlStream.REGION_WANTED, new RegionRecord(batch.regionId(), 0).encode());
        return false;
    }

    private boolean copy() {
        MemorySegment source = batch.source();
        int runCount = 0;
        int runLength;
        for (int i = 0; i < batch.pageCount(); i += runLength) {
            runLength = batch.runLength(i);
            long runBytes = runLength * batch.pageBytes();
            long to = batch.targetOffsetBytes(i);
            if (to < 0 || to > lastRegion.byteSize() - runBytes) {
                lose(TransferFault.PROTOCOL, "the peer's region " + batch.regionId() + " is shorter than it said");
                return false;
            }
            MemorySegment.copy(source, batch.sourceOffsetBytes(i), lastRegion, to, runBytes);
            runCount++;
        }
        if (batch.weight() > 0) {
            ring.push(Imm.withWeight(batch.window(), (int) batch.weight()));
        }
        figures.onSent(batch, runCount);
        holding = false;
        outbox.requests().batchDone(batch.position());
        batch.clear();
        return true;
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        // Unmap first: the end of the socket tells the peer that nothing is written any more.
        lastRegion = null;
        regions.values().forEach(MappedFile::close);
        regions.clear();
        if (ringFile != null) {
            ringFile.close();
            figures.pathsLost.incrementAndGet();
        }
        if (wakeFd >= 0) {
            libC.close(wakeFd);
        }
        if (dialer != null) {
            dialer.close();
        }
        if (control != null) {
            control.close();
        }
        arena.close();
    }
}
