package io.kvmessenger.testkit.staging;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.testkit.device.SlowCopies;
import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.device.StandInMemories;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.EngineMemory;
import io.kvmessenger.testkit.transfer.WriterAndTarget;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.device.DriverAccess;
import io.kvmessenger.transfer.staging.StagingLimits;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.ExtendWith;

/** Copies between a device and page-locked memory that fail, that are told done too early, and that are not done yet. */
@Timeout(900)
@ExtendWith(SlowCopies.class)
final class StagedFaultTest extends WriterAndTarget {
    private static final long LONG_DELAY_NS = 20_000_000;
    private static final long LONG_MEMORY_BYTES = 24L << 20;
    private static final int OUT_OF_MEMORY = 2;
    private static final int[] ALL = IntStream.range(0, PAGE_COUNT).toArray();

    private StandInCuda standIn;

    @Override
    protected String transport() {
        return TransferOptions.TCP;
    }

    @Override
    protected DrivenEngine open(String name) {
        return StagedMemory.open(options(), MEMORY_BYTES);
    }

    @BeforeEach
    void load() {
        standIn = StandInCuda.load();
    }

    /** Writes all pages to a window of their own and waits until it is filled and all writes have ended. */
    private void writeAll(Peer to, RemoteWindow window, long cookie) {
        writer.submit(to, whole(window), cookie);
        DrivenEngine.awaitBoth("window " + cookie, target, writer, () -> target.filled.contains(cookie));
        writer.await("the end of " + cookie, () -> writer.endings.containsKey(cookie));
        assertThat(writer.memory().mismatch(target.memory())).isEqualTo(-1);
    }

    private PagedWrites whole(RemoteWindow window) {
        return new PagedWrites(
                writer.region(), list(ALL), target.region().descriptor(), list(ALL), PAGE_BYTES, window, 1);
    }

    /** A peer of the same writer, admitted anew. */
    private Peer again() {
        admission = target.engine().admit("writer");
        Peer second = writer.engine().connect(target.engine().address(), admission.key(), "target");
        writer.await("the second peer", () -> writer.ready.contains(second));
        return second;
    }

    private RemoteWindow windowOf(Peer to, long cookie) {
        ImmWindow window = target.openWindow(admission, everything(), PAGE_COUNT, cookie);
        WindowArea area = WindowArea.of(target.region().descriptor(), everything());
        return writer.engine().allow(to, window.imm(), area);
    }

    @Test
    void shouldEndThePeerWhosePagesADeviceDoesNotGather() {
        fillSource(new Random(1));
        RemoteWindow window = remote(grant(everything(), PAGE_COUNT, 1));
        standIn.fail("cuMemcpyDtoHAsync_v2", 1, OUT_OF_MEMORY);
        writer.submit(peer, whole(window), 1);
        writer.await("the loss", () -> writer.lost.containsKey(peer.id()));
        assertThat(writer.lost.get(peer.id()).fault()).isEqualTo(TransferFault.COPY_FAILED);
        assertThat(writer.lost.get(peer.id()).detail()).contains("cuMemcpyDtoHAsync", "CUDA_ERROR_OUT_OF_MEMORY");
        assertThat(writer.failed.get(1L).fault()).isEqualTo(TransferFault.COPY_FAILED);
        assertThat(target.filled).isEmpty();
        Peer second = again();
        writeAll(second, windowOf(second, 2), 2);
    }

    /** The writer is told why; the target's own window keeps its pages until the admission has ended. */
    @Test
    void shouldEndTheAdmissionOfWhatADeviceDoesNotTake() {
        fillSource(new Random(2));
        ImmWindow window = grant(everything(), PAGE_COUNT, 1);
        standIn.fail("cuMemcpyHtoDAsync_v2", 1, OUT_OF_MEMORY);
        writer.submit(peer, whole(remote(window)), 1);
        int first = admission.id();
        target.await("the end", () -> target.closedAdmissions.containsKey(first));
        writer.await("the loss", () -> writer.lost.containsKey(peer.id()));
        assertThat(writer.lost.get(peer.id()).fault()).isEqualTo(TransferFault.COPY_FAILED);
        assertThat(writer.lost.get(peer.id()).detail()).contains("cuMemcpyHtoDAsync");
        assertThat(window.arrivedWeight()).isLessThan(PAGE_COUNT);
        assertThat(target.filled).isEmpty();
        window.close(false);
        assertThat(target.engine().counters().of(TransferCounter.WINDOWS_OPEN)).isZero();
        Peer second = again();
        writeAll(second, windowOf(second, 2), 2);
    }

    /** A bug put in on purpose: what every contract test over a device stands on is seen by them. */
    @Test
    void shouldSeeThatAnImmediateIsCountedBeforeItsCopyIsDone() {
        try (DrivenEngine early = StagedMemory.open(
                options(), MEMORY_BYTES, new FfmLibC(), new EarlyAccess(new DriverAccess(StandInCuda.library())))) {
            fillSource(new Random(3));
            target.memory().fill(GUARD);
            early.memory().fill(GUARD);
            boolean[] right = new boolean[2];
            target.onFilled(() -> right[0] = target.memory().mismatch(writer.memory()) == -1);
            early.onFilled(() -> right[1] = early.memory().mismatch(writer.memory()) == -1);
            RemoteWindow sound = remote(grant(everything(), PAGE_COUNT, 1));
            Admission admitted = early.engine().admit("writer");
            Peer mutant = writer.engine().connect(early.engine().address(), admitted.key(), "mutant");
            writer.await("the mutant", () -> writer.ready.contains(mutant));
            ImmWindow window = early.openWindow(admitted, everything(), PAGE_COUNT, 1);
            RemoteWindow unsound = writer.engine()
                    .allow(mutant, window.imm(), WindowArea.of(early.region().descriptor(), everything()));
            standIn.delay(LONG_DELAY_NS);
            writer.submit(peer, whole(sound), 1);
            DrivenEngine.awaitBoth("the sound one", target, writer, () -> target.filled.contains(1L));
            writer.submit(
                    mutant,
                    new PagedWrites(
                            writer.region(), list(ALL), early.region().descriptor(), list(ALL), PAGE_BYTES, unsound, 1),
                    2);
            DrivenEngine.awaitBoth("the mutant's", early, writer, () -> early.filled.contains(1L));
            assertThat(right).containsExactly(true, false);
            standIn.delay(0);
            writer.await("the end", () -> writer.engine().counters().of(TransferCounter.REQUESTS_IN_FLIGHT) == 0);
        }
    }

    /** What is told free is overwritten at once by the engine: a copy that still runs would show. */
    @Test
    void shouldReportNothingFreeWhileADeviceStillReadsOrWritesIt() {
        fillSource(new Random(4));
        standIn.delay(LONG_DELAY_NS / 4);
        for (int round = 0; round < 8; round++) {
            ImmWindow window = grant(everything(), Long.MAX_VALUE, round);
            for (int i = 0; i < 4; i++) {
                writer.submit(peer, whole(remote(window)), round * 4L + i);
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
            peer = again();
            assertThat(isGuard(target.memory())).as("round %d", round).isTrue();
            standIn.delay(LONG_DELAY_NS / 4);
        }
    }

    /** Its memory is given back to the device at once: a copy that still reads it ends all that the device does. */
    @Test
    void shouldReadNothingOfASourceWhoseWritesHaveEnded() {
        for (int round = 0; round < 6; round++) {
            EngineMemory own = new StandInMemories().allocate(MEMORY_BYTES);
            standIn.delay(LONG_DELAY_NS / 4);
            Region source = writer.engine().register(own.memory());
            RemoteWindow window = remote(grant(everything(), Long.MAX_VALUE, round));
            for (int i = 0; i < 4; i++) {
                writer.submit(
                        peer,
                        new PagedWrites(
                                source, list(ALL), target.region().descriptor(), list(ALL), PAGE_BYTES, window, 1),
                        round * 4L + i);
            }
            if (round % 2 == 0) {
                writer.await(
                        "a slab that left", () -> writer.engine().counters().of(TransferCounter.BYTES_SENT) > 0);
            }
            writer.engine().disconnect(peer);
            writer.await("its end", () -> writer.engine().counters().of(TransferCounter.REQUESTS_IN_FLIGHT) == 0);
            source.deregister();
            own.close();
            peer = again();
        }
        standIn.delay(0);
        fillSource(new Random(6));
        writeAll(peer, windowOf(peer, 99), 99);
    }

    /** Sixteen peers want more room than there is; each gets on. */
    @Test
    void shouldShareItsRoomAmongManyPeers() {
        fillSource(new Random(5));
        standIn.delay(SlowCopies.DELAY_NS);
        Peer[] peers = new Peer[16];
        for (int i = 0; i < peers.length; i++) {
            peers[i] = again();
            RemoteWindow window = windowOf(peers[i], i);
            for (int part = 0; part < 8; part++) {
                int[] pages = IntStream.range(part * 64, part * 64 + 64).toArray();
                writer.submit(
                        peers[i],
                        new PagedWrites(
                                writer.region(),
                                list(pages),
                                target.region().descriptor(),
                                list(pages),
                                PAGE_BYTES,
                                window,
                                1),
                        i * 8L + part);
            }
        }
        DrivenEngine.awaitBoth("all windows", target, writer, () -> target.filled.size() == peers.length);
        writer.await("all ends", () -> writer.completed.size() == peers.length * 8);
        assertThat(writer.memory().mismatch(target.memory())).isEqualTo(-1);
        assertThat(standIn.pageableCopies()).isZero();
    }

    @Test
    void shouldMovePagesThatAreLongerThanASlabAndRefuseThoseThatAreTooLong() {
        try (DrivenEngine from = StagedMemory.open(options(), LONG_MEMORY_BYTES);
                DrivenEngine to = StagedMemory.open(options(), LONG_MEMORY_BYTES)) {
            to.memory().fill(GUARD);
            from.memory().fill((byte) 3);
            Admission admitted = to.engine().admit("writer");
            Peer far = from.engine().connect(to.engine().address(), admitted.key(), "target");
            from.await("the peer", () -> from.ready.contains(far));
            WindowRanges all = WindowRanges.ofEqual(new long[] {0}, LONG_MEMORY_BYTES);
            ImmWindow window = to.openWindow(admitted, all, 2, 1);
            RemoteWindow remote = from.engine()
                    .allow(far, window.imm(), WindowArea.of(to.region().descriptor(), all));
            long pageMaxBytes = StagingLimits.STANDARD.pageMaxBytes();
            SingleWrite tooLong =
                    new SingleWrite(from.region(), 0, to.region().descriptor(), 0, pageMaxBytes + 1, remote, 1);
            assertThat(from.engine().submit(far, tooLong, 0)).isEqualTo(TransferEngine.REFUSED);
            assertThat(from.engine().refusal())
                    .isEqualTo("a page of 8388609 bytes of " + from.region().memory()
                            + " is longer than what is gathered of it at once, 8388608 bytes; write it in parts");
            long at = 0;
            for (long lengthBytes : new long[] {pageMaxBytes, 5_000_001}) {
                from.submit(
                        far,
                        new SingleWrite(from.region(), at, to.region().descriptor(), at, lengthBytes, remote, 1),
                        at);
                at += lengthBytes;
            }
            DrivenEngine.awaitBoth("both", to, from, () -> to.filled.contains(1L));
            assertThat(from.memory().asSlice(0, at).mismatch(to.memory().asSlice(0, at)))
                    .isEqualTo(-1);
            assertThat(isGuard(to.memory().asSlice(at))).isTrue();
        }
    }
}
