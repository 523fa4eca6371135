package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.FakeDomain;
import io.kvmessenger.transfer.spi.FakeLinks;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.Poller;
import io.kvmessenger.transfer.staging.Staging;
import io.kvmessenger.transfer.staging.StagingLimits;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The worker, run by the test's own thread, over a transport that does what the test says. */
final class WorkerTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final int PEERS = 100;
    private static final long PEER_HEAP_MAX_BYTES = 8 << 10;

    private final EventLoop loop = new EventLoop(LIB_C, System::nanoTime);
    private static final Staging STAGING = new Staging(DeviceAccess.NONE, StagingLimits.STANDARD);
    private final Worker worker = new Worker("worker", loop);
    private final FakeDomain domain = new FakeDomain("fake", 0);
    private final FakeLinks links = new FakeLinks();
    private final CompletionRing completions = new CompletionRing(64, () -> {});
    private final List<String> reported = new ArrayList<>();
    private int lastPeerId;

    WorkerTest() {
        worker.use(links, List.of(domain), STAGING);
    }

    @AfterEach
    void close() {
        loop.close();
    }

    private OutboundPeer peer(String name) {
        OutboundPeer peer = unused(name);
        worker.add(peer);
        return peer;
    }

    private OutboundPeer unused(String name) {
        return new OutboundPeer(
                ++lastPeerId,
                name,
                new OutboundPeer.Target(
                        new EngineAddress(List.of(domain.at(name))),
                        new byte[Admission.KEY_LENGTH_BYTES],
                        links,
                        List.of(domain),
                        STAGING,
                        LinkSharing.ofEngine().loads()),
                2,
                new Allowances(new RegionTable(LIB_C)),
                completions,
                new Figures(),
                loop::nowNs);
    }

    private void drain() {
        completions.drain(
                (kind, cookie, value, subject, detail) -> {
                    assertThat(kind).isEqualTo(CompletionRing.PEER_LOST);
                    OutboundPeer.Loss loss = (OutboundPeer.Loss) subject;
                    reported.add(loss.peer().name() + " " + loss.fault() + " " + detail);
                },
                64);
    }

    @Test
    void shouldEndOnlyThePeerWhoseLinkThrows() {
        OutboundPeer sick = peer("sick");
        OutboundPeer sound = peer("sound");
        domain.thrownAt = "sick";
        domain.thrown = new InternalError("a fault occurred in an unsafe memory access operation");
        worker.doWork();
        drain();
        assertThat(sick.isLost()).isTrue();
        assertThat(reported).hasSize(1);
        assertThat(reported.getFirst())
                .startsWith("sick " + TransferFault.DISCONNECTED)
                .contains("InternalError", "unsafe memory access", "WorkerTest");
        assertThat(domain.closed).containsExactly("sick");
        worker.doWork();
        assertThat(sound.isLost()).isFalse();
        assertThat(domain.worked).containsExactly("sick", "sound", "sound");
    }

    /** An engine has heap for hundreds of peers, most of which never see a message. */
    @Test
    void shouldCostLittleHeapForEachPeer() {
        var threads = (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
        peer("first");
        long before = threads.getCurrentThreadAllocatedBytes();
        for (int i = 0; i < PEERS; i++) {
            peer("peer");
        }
        long bytes = (threads.getCurrentThreadAllocatedBytes() - before) / PEERS;
        assertThat(bytes).isLessThan(PEER_HEAP_MAX_BYTES);
    }

    /**
     * A command comes after the worker has looked at its commands for the last time, and the descriptor that wakes is read
     * before it sleeps. A wake-up that is lost shows as a test that does not end.
     */
    @Test
    @Timeout(value = 900, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
    void shouldNotSleepOverACommandThatCameWhileItLooked() {
        AtomicBoolean done = new AtomicBoolean();
        domain.onDutyCycle = () -> {
            domain.onDutyCycle = () -> {};
            runElsewhere(() -> worker.execute(() -> done.set(true)));
        };
        while (!done.get()) {
            worker.park(Integer.MAX_VALUE, () -> false);
        }
    }

    /** A worker that sleeps nevertheless shows as a test that does not end. */
    @Test
    @Timeout(value = 900, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
    void shouldSleepShortlyWhileADomainHasSomethingToDoSoon() {
        domain.done = Domain.LOOK_SOON;
        worker.park(Integer.MAX_VALUE, () -> false);
        assertThat(worker.doWork()).as("that is no work").isZero();
    }

    /** Each time costs a system call, which would delay what comes in memory next. */
    @Test
    void shouldLetSocketsRestWhileWhatComesIsInMemory() {
        CountingPoller poller = new CountingPoller();
        Worker counted = new Worker("worker", poller);
        counted.use(links, List.of(domain), STAGING);
        counted.doWork();
        counted.doWork();
        assertThat(poller.pollCount).as("whatever comes may come by a socket").isEqualTo(2);
        domain.done = 1;
        counted.doWork();
        domain.done = 0;
        counted.doWork();
        assertThat(poller.pollCount).isEqualTo(2);
        poller.nowNs += Worker.SOCKETS_REST_NS;
        poller.ready = 1;
        counted.doWork();
        counted.doWork();
        assertThat(poller.pollCount).as("a socket was ready last").isEqualTo(4);
    }

    /** A visit of each of 512 peers took several times as long as a small write to one of them. */
    @Test
    void shouldPassAPeerAtRestByUntilItIsStirredOrASweepIsDue() {
        CountingPoller poller = new CountingPoller();
        Worker counted = new Worker("worker", poller);
        counted.use(links, List.of(domain), STAGING);
        OutboundPeer peer = unused("resting");
        counted.add(peer);
        counted.doWork();
        domain.events.onReady();
        domain.events.onPathOpened(new OutboundPeerBed.FakePath());
        domain.worked.clear();
        counted.doWork();
        counted.doWork();
        assertThat(domain.worked).hasSize(1);
        peer.rest().stir();
        counted.doWork();
        assertThat(domain.worked).as("stirred").hasSize(2);
        poller.nowNs += Worker.SWEEP_NS;
        counted.doWork();
        counted.doWork();
        assertThat(domain.worked).as("a sweep").hasSize(3);
        counted.arm();
        counted.doWork();
        assertThat(domain.worked).as("before a sleep").hasSize(4);
    }

    /** Of a clock that stands still. */
    private static final class CountingPoller implements Poller {
        long nowNs;
        int ready;
        int pollCount;

        @Override
        public long nowNs() {
            return nowNs;
        }

        @Override
        public long tick() {
            return nowNs;
        }

        @Override
        public int poll(int timeoutMillis) {
            pollCount++;
            return ready;
        }

        @Override
        public void wake() {}

        @Override
        public void close() {}
    }

    private static void runElsewhere(Runnable action) {
        Thread thread = Thread.ofPlatform().start(action);
        try {
            thread.join();
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }
}
