package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Requirements on every transport when a peer's process dies or is stopped: real processes, real signals. */
@Timeout(900)
public abstract class PeerDeathContractTest {
    private static final int PAGE_BYTES = 65536;
    private static final long MEMORY_BYTES = 64L * PAGE_BYTES;
    private static final int REQUESTS_MAX = 64;

    private DrivenEngine engine;

    private final Map<Peer, RemoteWindow> windows = new HashMap<>();

    protected abstract String transport();

    @BeforeEach
    void open() {
        engine = new DrivenEngine(options(), "parent", MEMORY_BYTES);
    }

    @AfterEach
    void close() {
        engine.close();
    }

    protected TransferOptions options() {
        return TransferOptions.defaults()
                .withTransports(transport())
                .with(TransferOptions.REQUESTS_PER_PEER_MAX, REQUESTS_MAX);
    }

    /** A healthy peer, which makes progress while this test waits. */
    private DrivenEngine bystander() {
        return new DrivenEngine(
                options().with(TransferOptions.THREADING, ThreadingMode.OWN_THREAD), "bystander", MEMORY_BYTES);
    }

    private static WindowRanges everything() {
        return WindowRanges.ofEqual(new long[] {0}, MEMORY_BYTES);
    }

    private Peer connect(EngineAddress address, byte[] key, RegionDescriptor region, int imm) {
        Peer peer = engine.engine().connect(address, key, "peer");
        windows.put(peer, engine.engine().allow(peer, imm, WindowArea.of(region, everything())));
        engine.await("the peer", () -> engine.ready.contains(peer));
        return peer;
    }

    private SingleWrite write(Peer peer, RegionDescriptor region) {
        return new SingleWrite(engine.region(), 0, region, 0, PAGE_BYTES, windows.get(peer), 1);
    }

    /** Submits until the peer's queue is full; returns the next cookie. */
    private long fill(Peer peer, PeerProcess process, long firstCookie) {
        long cookie = firstCookie;
        while (engine.engine().submit(peer, write(peer, process.region()), cookie) == TransferEngine.ACCEPTED) {
            cookie++;
        }
        return cookie;
    }

    @Test
    void shouldFailEveryWriteOnceWhenTheTargetIsKilled() throws IOException, InterruptedException {
        try (PeerProcess process = PeerProcess.target(transport(), MEMORY_BYTES)) {
            Peer peer = connect(process.address(transport()), process.key(), process.region(), process.imm());
            long submitted = fill(peer, process, 0);
            process.signal("KILL");
            engine.await("the loss", () -> engine.lost.containsKey(peer.id()));
            assertThat(engine.lost.get(peer.id()).fault()).isEqualTo(TransferFault.PEER_CLOSED);
            assertThat(engine.endings).hasSize((int) submitted);
            assertThat(engine.endings.values()).containsOnly(1);
        }
    }

    @Test
    void shouldEndTheAdmissionWhenTheWriterIsKilled() throws IOException, InterruptedException {
        Admission admission = engine.engine().admit("child");
        ImmWindow window = engine.openWindow(admission, everything(), Long.MAX_VALUE, 1);
        try (PeerProcess process = PeerProcess.writer(transport(), engine, admission, window.imm(), PAGE_BYTES)) {
            engine.await("some pages", () -> window.arrivedWeight() > 0);
            process.signal("KILL");
            engine.await("the end", () -> engine.closedAdmissions.containsKey(admission.id()));
            engine.memory().fill((byte) 0x5A);
            long arrived = window.arrivedWeight();
            shouldStillMoveBytes();
            assertThat(window.arrivedWeight()).isEqualTo(arrived);
            for (long i = PAGE_BYTES; i < MEMORY_BYTES; i++) {
                assertThat(engine.memory().get(java.lang.foreign.ValueLayout.JAVA_BYTE, i) == 0x5A)
                        .as("nothing landed at %d after the end", i)
                        .isTrue();
            }
        }
    }

    private void shouldStillMoveBytes() {
        try (DrivenEngine other = bystander()) {
            writeTo(other, 1_000_000);
        }
    }

    /** Connects to another engine and waits until one write has arrived there. */
    private void writeTo(DrivenEngine other, long cookie) {
        Admission admission = other.engine().admit("parent");
        ImmWindow window = other.openWindow(admission, everything(), 1, cookie);
        RegionDescriptor region = other.region().descriptor();
        Peer peer = connect(other.engine().address(), admission.key(), region, window.imm());
        engine.submit(peer, write(peer, region), cookie);
        DrivenEngine.awaitBoth("the other peer", other, engine, () -> other.filled.contains(cookie));
        engine.await("its completion", () -> engine.completed.contains(cookie));
        engine.engine().disconnect(peer);
    }

    @Test
    void shouldPressBackOnlyForThePeerThatHasStopped() throws IOException, InterruptedException {
        try (PeerProcess process = PeerProcess.target(transport(), MEMORY_BYTES);
                DrivenEngine other = bystander()) {
            Peer stopped = connect(process.address(transport()), process.key(), process.region(), process.imm());
            process.signal("STOP");
            long cookie = 0;
            boolean stuck = false;
            for (int round = 0; !stuck; round++) {
                cookie = fill(stopped, process, cookie);
                engine.poll();
                int endings = engine.endings.size();
                writeTo(other, 1_000_000L + round);
                // Stuck: a whole write to the other peer was shorter than any progress of this one.
                long next = fill(stopped, process, cookie);
                stuck = engine.endings.size() == endings + 1 && next == cookie;
                cookie = next;
            }
            assertThat(engine.engine().counters().of(TransferCounter.BACK_PRESSURED))
                    .isPositive();
            assertThat(engine.lost).isEmpty();
            process.signal("CONT");
            long submitted = cookie;
            engine.await(
                    "all writes",
                    () -> engine.completed.stream().filter(c -> c < submitted).count() == submitted);
            assertThat(engine.endings.values()).containsOnly(1);
        }
    }
}
