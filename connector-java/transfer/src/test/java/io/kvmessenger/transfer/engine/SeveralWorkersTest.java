package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.EngineEndedException;
import io.kvmessenger.transfer.GroupRequest.Barrier;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.ImmOnly;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.FakeDomain;
import io.kvmessenger.transfer.spi.FakeLinks;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.OpenWindow;
import io.kvmessenger.transfer.spi.Poller;
import io.kvmessenger.transfer.spi.Transport;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** An engine with two workers, over a transport that does what the test says. */
final class SeveralWorkersTest {
    private static final int WORKERS = 2;
    private static final long REGION_BYTES = 64;
    private static final LibC LIB_C = new FfmLibC();

    private final EventLoop loop = new EventLoop(LIB_C, System::nanoTime);
    private final List<Seat> seats = new ArrayList<>();
    private final List<Bell> bells = List.of(new Bell(), new Bell());
    private final Recorder reported = new Recorder();
    private InvokedEngine invoked;

    @AfterEach
    void close() {
        loop.close();
    }

    /** What one worker's domain was asked and told. */
    private static final class Seat extends FakeDomain implements Transport {
        private Figures figures;
        private int letGo;
        private boolean wasClosed;

        Seat() {
            super("fake", 0);
        }

        @Override
        public Domain open(InboundPort port, Figures counted) {
            figures = counted;
            return this;
        }

        /** One write is half received here. */
        @Override
        public void onWindowClosed(OpenWindow window) {
            letGo++;
            window.endLanding();
        }

        @Override
        public void close() {
            wasClosed = true;
        }
    }

    /** Counts how often it was woken. */
    private static final class Bell implements Poller {
        private int wakes;

        @Override
        public long nowNs() {
            return 0;
        }

        @Override
        public long tick() {
            return 0;
        }

        @Override
        public int poll(int timeoutMillis) {
            return 0;
        }

        @Override
        public void wake() {
            wakes++;
        }

        @Override
        public void close() {}
    }

    private List<WorkerPorts> ports(List<? extends Poller> pollers) {
        return IntStream.range(0, WORKERS)
                .mapToObj(i -> {
                    seats.add(new Seat());
                    return new WorkerPorts(pollers.get(i), new FakeLinks(), List.of(seats.get(i)));
                })
                .toList();
    }

    private TransferEngine invoked() {
        invoked = new InvokedEngine(
                EngineLimits.of(TransferOptions.defaults()),
                new EnginePorts(LIB_C, System::nanoTime, new Random(1), ports(bells)),
                () -> {});
        return invoked.engine();
    }

    private Peer connect(TransferEngine engine, String name) {
        EngineAddress address = new EngineAddress(List.of(seats.getFirst().at(name)));
        return engine.connect(address, new byte[Admission.KEY_LENGTH_BYTES], name);
    }

    private ImmWindow window(TransferEngine engine) {
        Region region = engine.register(Memory.host(Arena.ofAuto().allocate(REGION_BYTES)));
        WindowArea area = WindowArea.of(region.descriptor(), WindowRanges.ofEqual(new long[] {0}, REGION_BYTES));
        return engine.openWindow(engine.admit("writer"), area, 1, 0);
    }

    @Test
    void shouldGiveEachPeerToTheWorkerWithTheFewest() {
        TransferEngine engine = invoked();
        List<Peer> peers = IntStream.range(0, 4)
                .mapToObj(i -> connect(engine, "peer " + i))
                .toList();
        invoked.doWork();
        assertThat(seats).extracting(seat -> seat.attached).containsExactly(2, 2);
        engine.disconnect(peers.get(1));
        engine.disconnect(peers.get(3));
        connect(engine, "fifth");
        connect(engine, "sixth");
        invoked.doWork();
        assertThat(seats).extracting(seat -> seat.attached).containsExactly(4, 2);
    }

    @Test
    void shouldMakeEveryWorkerLetGoOfAClosedWindow() {
        ImmWindow window = window(invoked());
        for (int i = 0; i < WORKERS; i++) {
            assertThat(((OpenWindow) window).beginLanding()).isTrue();
        }
        window.close(true);
        assertThat(seats).extracting(seat -> seat.letGo).containsExactly(1, 1);
    }

    @Test
    void shouldHandOutWhatHappenedAtEveryWorkerWithinTheLimit() {
        TransferEngine engine = invoked();
        IntStream.range(0, 4).forEach(i -> engine.revoke(engine.admit("writer " + i)));
        invoked.doWork();
        assertThat(IntStream.range(0, 4).map(i -> engine.poll(reported, 1))).containsOnly(1);
        assertThat(reported.events).containsExactlyInAnyOrder("writer 0", "writer 1", "writer 2", "writer 3");
        assertThat(engine.poll(reported, 1)).isZero();
    }

    @Test
    void shouldWakeTheWorkerOfEveryMemberOfAGroup() {
        TransferEngine engine = invoked();
        List<Peer> peers = List.of(connect(engine, "first"), connect(engine, "second"));
        WindowArea area = WindowArea.of(
                engine.register(Memory.host(Arena.ofAuto().allocate(REGION_BYTES)))
                        .descriptor(),
                WindowRanges.ofEqual(new long[] {0}, REGION_BYTES));
        List<RemoteWindow> windows = peers.stream()
                .map(peer -> engine.allow(peer, Imm.of(1, 0), area))
                .toList();
        invoked.doWork();
        bells.forEach(bell -> bell.wakes = 0);
        engine.submit(engine.group("both", peers), new Barrier(windows, 1), 0);
        assertThat(bells).extracting(bell -> bell.wakes).containsExactly(1, 1);
    }

    @Test
    void shouldAddUpTheFiguresOfAllWorkers() {
        TransferEngine engine = invoked();
        seats.get(0).figures.add(TransferCounter.BYTES_SENT, 3);
        seats.get(1).figures.add(TransferCounter.BYTES_SENT, 4);
        assertThat(engine.counters().of(TransferCounter.BYTES_SENT)).isEqualTo(7);
    }

    /** An error of a worker itself: what it still had to do nothing knows, so that none goes on. */
    @Test
    void shouldEndAllPeersWhenOneWorkerFails() {
        TransferEngine engine = invoked();
        writeToTwo(engine);
        seats.get(0).onDutyCycle = SeveralWorkersTest::fail;
        invoked.doWork();
        assertEnded(engine);
    }

    @Test
    @Timeout(value = 900, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
    void shouldEndTheOtherWorkersThreadWhenOneFails() {
        EventLoop second = new EventLoop(LIB_C, System::nanoTime);
        OwnThreads[] made = new OwnThreads[1];
        TransferEngine engine = new HostTransferEngine(
                EngineLimits.of(TransferOptions.defaults()),
                new EnginePorts(LIB_C, System::nanoTime, new Random(1), ports(List.of(loop, second))),
                (workers, onBug) -> made[0] = new OwnThreads(workers, System::nanoTime, 2, onBug));
        writeToTwo(engine);
        seats.get(0).onDutyCycle = SeveralWorkersTest::fail;
        while (made[0].isRunning()) {
            Thread.onSpinWait();
        }
        assertEnded(engine);
        engine.close();
    }

    private void writeToTwo(TransferEngine engine) {
        for (int i = 0; i < WORKERS; i++) {
            Peer peer = connect(engine, "peer " + i);
            WindowArea area = WindowArea.of(
                    engine.register(Memory.host(Arena.ofAuto().allocate(REGION_BYTES)))
                            .descriptor(),
                    WindowRanges.ofEqual(new long[] {0}, REGION_BYTES));
            RemoteWindow window = engine.allow(peer, Imm.of(1, 0), area);
            assertThat(engine.submit(peer, new ImmOnly(window, 1), i)).isEqualTo(TransferEngine.ACCEPTED);
        }
    }

    private void assertEnded(TransferEngine engine) {
        assertThat(seats).extracting(seat -> seat.wasClosed).containsExactly(true, true);
        while (engine.counters().requestsInFlight() > 0) {
            assertThat(engine.poll(reported, 64)).isPositive();
        }
        assertThat(reported.events).containsExactlyInAnyOrder("failed 0", "failed 1");
        assertThatThrownBy(() -> engine.poll(reported, 64)).isInstanceOf(EngineEndedException.class);
    }

    private static void fail() {
        throw new AssertionError("a mistake");
    }

    private static final class Recorder implements CompletionHandler {
        private final List<String> events = new ArrayList<>();

        @Override
        public void onWriteCompleted(long cookie) {
            events.add("completed " + cookie);
        }

        @Override
        public void onWriteFailed(long cookie, TransferFault fault, String detail) {
            events.add("failed " + cookie);
        }

        @Override
        public void onWindowFilled(long cookie) {
            events.add("filled " + cookie);
        }

        @Override
        public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {
            events.add("overshot " + cookie);
        }

        @Override
        public void onPeerReady(Peer peer) {
            events.add("ready " + peer.name());
        }

        @Override
        public void onPeerLost(Peer peer, TransferFault fault, String detail) {
            events.add("lost " + peer.name());
        }

        @Override
        public void onAdmissionClosed(Admission admission, String detail) {
            events.add(admission.peerName());
        }

        @Override
        public void onWriteRefused(Admission admission, String detail) {
            events.add("refused");
        }

        @Override
        public void onMessage(Admission from, MemorySegment message) {
            events.add("message");
        }
    }
}
