package io.kvmessenger.testkit.staging;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.testkit.device.SlowCopies;
import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.NeedsLibFabric;
import io.kvmessenger.testkit.transfer.WriterAndTarget;
import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.device.DriverAccess;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.ExtendWith;

/** Frames whose copies to a device fail, are not done yet, or are taken for done; and more peers than have slabs. */
@Timeout(900)
@ExtendWith(NeedsLibFabric.class)
@ExtendWith(SlowCopies.class)
final class LandedFabricFaultTest extends WriterAndTarget {
    private static final long LONG_DELAY_NS = 5_000_000;
    private static final int OUT_OF_MEMORY = 2;
    private static final int PEERS_MAX = 3;
    private static final int[] ALL = IntStream.range(0, PAGE_COUNT).toArray();

    private StandInCuda standIn;

    @Override
    protected String transport() {
        return TransferOptions.LIBFABRIC;
    }

    @Override
    protected TransferOptions options() {
        return StagedMemory.byLibFabric(super.options())
                .with(TransferOptions.LANDING_PEERS, PEERS_MAX)
                .with(TransferOptions.LANDING_SLAB_KIB, 64);
    }

    @Override
    protected DrivenEngine open(String name) {
        return StagedMemory.open(options(), MEMORY_BYTES);
    }

    @BeforeEach
    void load() {
        standIn = StandInCuda.load();
    }

    private PagedWrites whole(DrivenEngine to, RemoteWindow window) {
        return new PagedWrites(writer.region(), list(ALL), to.region().descriptor(), list(ALL), PAGE_BYTES, window, 1);
    }

    /** A peer of the same writer, admitted anew. */
    private Peer connectTo(DrivenEngine to) {
        admission = to.engine().admit("writer");
        Peer made = writer.engine().connect(to.engine().address(), admission.key(), "target");
        writer.await("the next peer", () -> writer.ready.contains(made));
        return made;
    }

    private RemoteWindow windowOf(DrivenEngine to, Peer by, long weight, long cookie) {
        ImmWindow window = to.openWindow(admission, everything(), weight, cookie);
        return writer.engine().allow(by, window.imm(), WindowArea.of(to.region().descriptor(), everything()));
    }

    private void writeAll(DrivenEngine to, Peer by, long cookie) {
        writer.submit(by, whole(to, windowOf(to, by, PAGE_COUNT, cookie)), cookie);
        DrivenEngine.awaitBoth("window " + cookie, to, writer, () -> to.filled.contains(cookie));
        writer.await("the end of " + cookie, () -> writer.endings.containsKey(cookie));
        assertThat(writer.memory().mismatch(to.memory())).isEqualTo(-1);
    }

    /** The writer is told why; the target's own window keeps its pages until the admission has ended. */
    @Test
    void shouldEndTheAdmissionOfWhatADeviceDoesNotTake() {
        assertThat(peer.transport()).isEqualTo(TransferOptions.LIBFABRIC);
        fillSource(new Random(2));
        ImmWindow window = grant(everything(), PAGE_COUNT, 1);
        standIn.fail("cuMemcpyHtoDAsync_v2", 1, OUT_OF_MEMORY);
        writer.submit(peer, whole(target, remote(window)), 1);
        int first = admission.id();
        target.await("the end", () -> target.closedAdmissions.containsKey(first));
        writer.await("the loss", () -> writer.lost.containsKey(peer.id()));
        assertThat(writer.lost.get(peer.id()).fault()).isEqualTo(TransferFault.COPY_FAILED);
        assertThat(writer.lost.get(peer.id()).detail()).contains("cuMemcpyHtoDAsync");
        assertThat(window.arrivedWeight()).isLessThan(PAGE_COUNT);
        assertThat(target.filled).isEmpty();
        window.close(false);
        assertThat(target.engine().counters().of(TransferCounter.WINDOWS_OPEN)).isZero();
        writeAll(target, connectTo(target), 2);
    }

    /** A bug put in on purpose: what every contract test of these slabs stands on is seen by them. */
    @Test
    void shouldSeeThatAFrameIsCountedBeforeItsCopyIsDone() {
        try (DrivenEngine early = StagedMemory.open(
                options(), MEMORY_BYTES, new FfmLibC(), new EarlyAccess(new DriverAccess(StandInCuda.library())))) {
            fillSource(new Random(3));
            early.memory().fill(GUARD);
            boolean[] right = {true};
            early.onFilled(() -> right[0] = early.memory().mismatch(writer.memory()) == -1);
            Peer mutant = connectTo(early);
            assertThat(mutant.transport()).isEqualTo(TransferOptions.LIBFABRIC);
            RemoteWindow unsound = windowOf(early, mutant, PAGE_COUNT, 1);
            standIn.delay(LONG_DELAY_NS);
            writer.submit(mutant, whole(early, unsound), 2);
            DrivenEngine.awaitBoth("the mutant's", early, writer, () -> early.filled.contains(1L));
            assertThat(right[0]).isFalse();
            standIn.delay(0);
            writer.await("the end", () -> writer.engine().counters().of(TransferCounter.REQUESTS_IN_FLIGHT) == 0);
        }
    }

    /** What is reported free is overwritten at once by the engine: a copy that still runs would show. */
    @Test
    void shouldReportNothingFreeWhileADeviceStillReadsOrWritesIt() {
        fillSource(new Random(4));
        standIn.delay(LONG_DELAY_NS);
        for (int round = 0; round < 6; round++) {
            ImmWindow window = grant(everything(), Long.MAX_VALUE, round);
            for (int i = 0; i < 4; i++) {
                writer.submit(peer, whole(target, remote(window)), round * 4L + i);
            }
            if (round % 2 == 0) {
                target.await("something", () -> window.arrivedWeight() > 0);
            }
            writer.engine().disconnect(peer);
            writer.await("its end", () -> writer.engine().counters().of(TransferCounter.REQUESTS_IN_FLIGHT) == 0);
            int id = admission.id();
            target.engine().revoke(admission);
            target.await("the proof", () -> target.closedAdmissions.containsKey(id));
            window.close(false);
            target.memory().fill(GUARD);
            standIn.delay(0);
            peer = connectTo(target);
            assertThat(isGuard(target.memory())).as("round %d", round).isTrue();
            standIn.delay(LONG_DELAY_NS);
        }
        standIn.delay(0);
        writeAll(target, peer, 99);
    }

    /** Each has slabs of its own while some are left; the next takes the next transport, and slabs are used again. */
    @Test
    void shouldReachMorePeersThanHaveSlabsByTheNextTransport() {
        fillSource(new Random(5));
        List<Peer> peers = new ArrayList<>(List.of(peer));
        while (peers.size() < PEERS_MAX) {
            peers.add(connectTo(target));
        }
        assertThat(peers).allMatch(one -> one.transport().equals(TransferOptions.LIBFABRIC));
        Peer further = connectTo(target);
        assertThat(further.transport()).isEqualTo(TransferOptions.TCP);
        writeAll(target, further, 1);
        int id = admission.id();
        writer.engine().disconnect(further);
        target.await("its end", () -> target.closedAdmissions.containsKey(id));
        writer.engine().disconnect(peers.getFirst());
        target.await("an end", () -> target.closedAdmissions.size() == 2);
        Peer again = connectTo(target);
        assertThat(again.transport()).isEqualTo(TransferOptions.LIBFABRIC);
        target.memory().fill(GUARD);
        writeAll(target, again, 2);
        assertThat(standIn.pageableCopies()).isZero();
    }

    /** Rows in host memory beside pages on a device, at the same target: the NIC writes the rows itself. */
    @Test
    void shouldWriteToHostMemoryDirectlyBesideADevice() {
        try (HostMemory rows = HostMemory.allocate("rows", MEMORY_BYTES)) {
            Region region = target.engine().register(rows.shared());
            fillSource(new Random(6));
            WindowArea area = WindowArea.of(region.descriptor(), everything());
            ImmWindow window = target.engine().openWindow(admission, area, 1, 1);
            RemoteWindow remote = writer.engine().allow(peer, window.imm(), area);
            long received = target.engine().counters().of(TransferCounter.BYTES_RECEIVED);
            writer.submit(peer, new SingleWrite(writer.region(), 5, region.descriptor(), 9, 100_001, remote, 1), 1);
            DrivenEngine.awaitBoth("the rows", target, writer, () -> target.filled.contains(1L));
            writer.await("its end", () -> writer.endings.containsKey(1L));
            assertThat(rows.memory()
                            .asSlice(9, 100_001)
                            .mismatch(writer.memory().asSlice(5, 100_001)))
                    .isEqualTo(-1);
            assertThat(target.engine().counters().of(TransferCounter.BYTES_RECEIVED))
                    .isEqualTo(received);
            writeAll(target, peer, 2);
            window.close(true);
            writer.engine().close();
            target.engine().close();
        }
    }
}
