package io.kvmessenger.transfer.engine;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.ImmOnly;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.link.SocketLinks;
import io.kvmessenger.transfer.shm.ShmTransport;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.FakeDomain;
import io.kvmessenger.transfer.spi.FakeTransport;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.List;
import java.util.Random;

/**
 * A writer and its target over shm in one process, on a clock of the test's: the test calls each duty cycle, so that
 * either may stand still for as long as the test likes. Beside shm there is a transport that takes everything at once.
 *
 * <p>One of the target's two regions cannot be mapped while the test says so: a write to it ends shm.
 */
final class SameHostPair implements AutoCloseable {
    static final long CONNECT_LIMIT_NS = 2_000_000_000L;
    private static final long STEP_NS = 1_000_000;
    private static final long SMALL_BYTES = 1 << 16;
    private static final long UNMAPPABLE_BYTES = 3 << 16;
    private static final int WRITE_BYTES = 4096;

    private long nowNs;
    boolean mapsAll;
    private final Beside beside = new Beside();
    private final Counted writerEvents = new Counted();
    private final Counted targetEvents = new Counted();
    private final HostMemory source = HostMemory.allocate("source", SMALL_BYTES);
    private final HostMemory mappable = HostMemory.allocate("mappable", SMALL_BYTES);
    private final HostMemory unmappable = HostMemory.allocate("unmappable", UNMAPPABLE_BYTES);
    private final InvokedEngine writer = engine(refusingMaps());
    private final InvokedEngine target = engine(new FfmLibC());
    final Peer peer;
    final ImmWindow window;
    private final SingleWrite right;
    private final SingleWrite breaking;
    private final ImmOnly alone;
    private final Admission admission;
    private long submitted;

    SameHostPair() {
        Region from = writer.engine().register(source.shared());
        Region small = target.engine().register(mappable.shared());
        Region big = target.engine().register(unmappable.shared());
        admission = target.engine().admit("writer");
        peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
        for (int i = 0; i < 1000 && writerEvents.readyCount == 0; i++) {
            step();
        }
        WindowArea area = WindowArea.of(List.of(
                new WindowArea.Part(small.descriptor(), WindowRanges.ofEqual(new long[] {0}, SMALL_BYTES)),
                new WindowArea.Part(big.descriptor(), WindowRanges.ofEqual(new long[] {0}, UNMAPPABLE_BYTES))));
        window = target.engine().openWindow(admission, area, Long.MAX_VALUE, 1);
        RemoteWindow remote = writer.engine().allow(peer, window.imm(), area);
        right = new SingleWrite(from, 0, small.descriptor(), 0, WRITE_BYTES, remote, 1);
        breaking = new SingleWrite(from, 0, big.descriptor(), 0, WRITE_BYTES, remote, 1);
        alone = new ImmOnly(remote, 1);
    }

    private InvokedEngine engine(LibC libC) {
        EventLoop loop = new EventLoop(libC, () -> nowNs);
        SocketLinks links = new SocketLinks(loop, CONNECT_LIMIT_NS, CONNECT_LIMIT_NS);
        return new InvokedEngine(
                EngineLimits.of(TransferOptions.defaults()),
                new EnginePorts(
                        libC,
                        () -> nowNs,
                        new Random(1),
                        loop,
                        links,
                        List.of(new ShmTransport(loop, links, CONNECT_LIMIT_NS), FakeTransport.of(beside))),
                () -> {});
    }

    private LibC refusingMaps() {
        LibC real = new FfmLibC();
        return (LibC) Proxy.newProxyInstance(
                SameHostPair.class.getClassLoader(), new Class<?>[] {LibC.class}, (proxy, method, arguments) -> {
                    boolean refused =
                            method.getName().equals("mmap") && !mapsAll && (Long) arguments[1] == UNMAPPABLE_BYTES;
                    try {
                        return refused ? (long) -Errno.ENOMEM : method.invoke(real, arguments);
                    } catch (InvocationTargetException e) {
                        throw e.getCause();
                    }
                });
    }

    void stepWriter() {
        nowNs += STEP_NS;
        writer.doWork();
        writer.engine().poll(writerEvents, 64);
    }

    void stepTarget() {
        nowNs += STEP_NS;
        target.doWork();
        target.engine().poll(targetEvents, 64);
    }

    void step() {
        stepWriter();
        stepTarget();
    }

    void steps(int count) {
        for (int i = 0; i < count; i++) {
            step();
        }
    }

    void pass(long lengthNs) {
        nowNs += lengthNs;
    }

    /** Writes once and sees it completed; returns the transport that took it. */
    String write(boolean breaksShm) {
        long wanted = writerEvents.completedCount + 1;
        if (writer.engine().submit(peer, breaksShm ? breaking : right, submitted++) != TransferEngine.ACCEPTED) {
            throw new AssertionError("not accepted: " + writer.engine().refusal());
        }
        for (int i = 0; i < 200 && writerEvents.completedCount < wanted; i++) {
            step();
        }
        if (writerEvents.completedCount < wanted) {
            throw new AssertionError("not completed");
        }
        return peer.transport();
    }

    /** Submits immediates while only the writer works, as many as are taken; returns their number. */
    long writeToASleepingTarget(long count) {
        long before = submitted;
        for (long tries = 0; tries < 2 * count && submitted - before < count; tries++) {
            if (writer.engine().submit(peer, alone, submitted) == TransferEngine.ACCEPTED) {
                submitted++;
            } else {
                stepWriter();
            }
        }
        return submitted - before;
    }

    /** Whether all that was submitted has completed at the writer. */
    boolean allCompleted() {
        return writerEvents.completedCount == submitted;
    }

    /** The target's user wants nothing more of the writer. */
    void revoke() {
        target.engine().revoke(admission);
    }

    boolean writerLost() {
        return writerEvents.lostCount > 0;
    }

    boolean admissionClosed() {
        return targetEvents.closedCount > 0;
    }

    /** Writes that were completed at the writer, and neither counted by the target nor taken beside shm. */
    long vanished() {
        return writerEvents.completedCount - window.arrivedWeight() - beside.takenCount;
    }

    /** Losses of the peer or the admission, and failed writes. */
    int faults() {
        return writerEvents.faultCount + targetEvents.faultCount;
    }

    @Override
    public void close() {
        writer.engine().close();
        target.engine().close();
        source.close();
        mappable.close();
        unmappable.close();
    }

    /** Takes everything and says at once that it was sent. */
    private static final class Beside extends FakeDomain {
        private long takenCount;

        Beside() {
            super("beside", 0);
        }

        @Override
        public OutboundPaths attach(OutboundChannel channel, String location, PathEvents pathEvents, long nowNs) {
            return new BesidePaths(pathEvents);
        }

        private final class BesidePaths implements OutboundPaths, Endpoint {
            private final PathEvents events;
            private boolean open;
            private long lastPost = -1;

            BesidePaths(PathEvents events) {
                this.events = events;
            }

            @Override
            public int post(WriteBatch batch, long postId) {
                if (lastPost >= 0) {
                    return 0;
                }
                lastPost = postId;
                takenCount += batch.weight();
                return batch.unitCount();
            }

            @Override
            public int doWork(long nowNs) {
                if (!open) {
                    open = true;
                    events.onReady();
                    events.onPathOpened(this);
                    return 1;
                }
                long sent = lastPost;
                lastPost = -1;
                if (sent >= 0) {
                    events.onSent(sent);
                }
                return sent >= 0 ? 1 : 0;
            }

            @Override
            public void close() {}
        }
    }

    private static final class Counted implements CompletionHandler {
        private long completedCount;
        private int readyCount;
        private int faultCount;
        private int lostCount;
        private int closedCount;

        @Override
        public void onWriteCompleted(long cookie) {
            completedCount++;
        }

        @Override
        public void onWriteFailed(long cookie, TransferFault fault, String detail) {
            faultCount++;
        }

        @Override
        public void onWindowFilled(long cookie) {}

        @Override
        public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {
            faultCount++;
        }

        @Override
        public void onPeerReady(Peer peer) {
            readyCount++;
        }

        @Override
        public void onPeerLost(Peer peer, TransferFault fault, String detail) {
            lostCount++;
            faultCount++;
        }

        @Override
        public void onAdmissionClosed(Admission admission, String detail) {
            closedCount++;
            faultCount++;
        }

        @Override
        public void onWriteRefused(Admission admission, String detail) {
            faultCount++;
        }

        @Override
        public void onMessage(Admission from, MemorySegment message) {}
    }
}
