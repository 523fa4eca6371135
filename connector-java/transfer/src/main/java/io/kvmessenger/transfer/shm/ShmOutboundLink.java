package io.kvmessenger.transfer.shm;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.StreamingCopy;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.socket.ControlStream;
import io.kvmessenger.transfer.socket.Dialer;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.Notice;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.LinkEvents;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OutboundLink;
import io.kvmessenger.transfer.spi.WriteBatch;
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
final class ShmOutboundLink implements OutboundLink, Endpoint, ControlStream.Reader {
    /** With its acceptance: the ring and what wakes the target. */
    private static final int DESCRIPTORS_MAX = 2;

    private static final int BATCH_PAGES_MAX = 256;
    private static final long BATCH_BYTES = 256 << 10;
    /** Batches that were copied and not yet told as sent. */
    private static final int COPIED_MAX = 1 << 10;

    private final EventLoop loop;
    private final LibC libC;
    private final String name;
    private final MessageQueue messages;
    private final LinkEvents events;
    private final Figures figures;
    private final long connectDeadlineNs;
    private final Map<Integer, MappedFile> regions = new HashMap<>();
    private final RunCopier copier = new RunCopier(StreamingCopy.ofThisProcess());
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment one = arena.allocateFrom(ValueLayout.JAVA_LONG, 1L);
    private Dialer dialer;
    private ControlStream control;
    private String connectFault;
    private MappedFile ringFile;
    private ImmRing ring;
    private int wakeFd = ControlStream.NO_DESCRIPTOR;
    private final long[] copied = new long[COPIED_MAX];
    private int copiedCount;
    private boolean ringFull;
    private String copyFault;
    private int wantedRegionId;
    private boolean waitingForRegion;
    private int lastRegionId;
    private MemorySegment lastRegion;
    private boolean closed;

    ShmOutboundLink(
            EventLoop loop,
            String name,
            byte[] admissionKey,
            MessageQueue messages,
            LinkEvents events,
            Figures figures,
            long connectDeadlineNs,
            IntPredicate ofThisUser) {
        this.loop = loop;
        libC = loop.libC();
        this.name = name;
        this.messages = messages;
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
        figures.increment(TransferCounter.PATHS_OPENED);
        events.onReady();
        events.onPathOpened(this);
    }

    private void onRegion(RegionRecord region) {
        if (!waitingForRegion || (region != null && region.regionId() != wantedRegionId)) {
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
        int work = control.sendAll(ControlStream.MESSAGE, messages) + tell();
        if (!closed && copyFault != null) {
            lose(TransferFault.PROTOCOL, copyFault);
        }
        return ringFull && work == 0 ? LOOK_SOON : work;
    }

    /** Wakes the target for what was copied since the last turn, and tells the engine of it. */
    private int tell() {
        int count = copiedCount;
        if (count > 0 && ring.claimWake()) {
            libC.write(wakeFd, one, Long.BYTES);
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

    /** Finds the mapping of a region, or asks the peer for it. */
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
        waitingForRegion = control.offer(ControlStream.REGION_WANTED, new RegionRecord(regionId, 0).encode());
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
        // Unmap first: the end of the socket tells the peer that nothing is written any more.
        lastRegion = null;
        regions.values().forEach(MappedFile::close);
        regions.clear();
        if (ringFile != null) {
            ringFile.close();
            figures.increment(TransferCounter.PATHS_LOST);
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
