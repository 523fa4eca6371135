package io.kvmessenger.testkit.staging;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.testkit.device.SlowCopies;
import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.device.StandInMemories;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.EngineMemory;
import io.kvmessenger.testkit.transfer.NeedsLibFabric;
import io.kvmessenger.testkit.transfer.WriterAndTarget;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowArea;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.ExtendWith;

/** Pages of a device that are gathered for libfabric: copies that fail, peers that are given up amid copies, targets on devices. */
@Timeout(900)
@ExtendWith(NeedsLibFabric.class)
@ExtendWith(SlowCopies.class)
final class StagedFabricFaultTest extends WriterAndTarget {
    private static final long LONG_DELAY_NS = 5_000_000;
    private static final int OUT_OF_MEMORY = 2;
    private static final int[] ALL = IntStream.range(0, PAGE_COUNT).toArray();

    private StandInCuda standIn;

    @Override
    protected String transport() {
        return TransferOptions.LIBFABRIC;
    }

    @Override
    protected TransferOptions options() {
        return StagedMemory.byLibFabric(super.options());
    }

    @Override
    protected DrivenEngine open(String name) {
        return StagedMemory.openFromDevice(name, options(), MEMORY_BYTES);
    }

    @BeforeEach
    void load() {
        standIn = StandInCuda.load();
    }

    private static PagedWrites whole(Region source, DrivenEngine to, RemoteWindow window) {
        return new PagedWrites(source, list(ALL), to.region().descriptor(), list(ALL), PAGE_BYTES, window, 1);
    }

    /** A peer of the same writer, admitted anew. */
    private Peer connectTo(DrivenEngine to) {
        admission = to.engine().admit("writer");
        Peer made = writer.engine().connect(to.engine().address(), admission.key(), "target");
        writer.await("the next peer", () -> writer.ready.contains(made));
        return made;
    }

    private void writeAll(DrivenEngine to, Peer by, long cookie) {
        ImmWindow window = to.openWindow(admission, everything(), PAGE_COUNT, cookie);
        WindowArea area = WindowArea.of(to.region().descriptor(), everything());
        RemoteWindow remote = writer.engine().allow(by, window.imm(), area);
        writer.submit(by, whole(writer.region(), to, remote), cookie);
        DrivenEngine.awaitBoth("window " + cookie, to, writer, () -> to.filled.contains(cookie));
        writer.await("the end of " + cookie, () -> writer.endings.containsKey(cookie));
        assertThat(writer.memory().mismatch(to.memory())).isEqualTo(-1);
    }

    @Test
    void shouldEndThePeerWhosePagesADeviceDoesNotGather() {
        assertThat(peer.transport()).isEqualTo(TransferOptions.LIBFABRIC);
        fillSource(new Random(1));
        RemoteWindow window = remote(grant(everything(), PAGE_COUNT, 1));
        standIn.fail("cuMemcpyDtoHAsync_v2", 1, OUT_OF_MEMORY);
        writer.submit(peer, whole(writer.region(), target, window), 1);
        writer.await("the loss", () -> writer.lost.containsKey(peer.id()));
        assertThat(writer.failed.get(1L).fault()).isEqualTo(TransferFault.COPY_FAILED);
        assertThat(target.filled).isEmpty();
        writeAll(target, connectTo(target), 2);
    }

    /** Its memory is given back to the device at once: a copy that still reads it ends all that the device does. */
    @Test
    void shouldReadNothingOfASourceWhoseWritesHaveEnded() {
        for (int round = 0; round < 6; round++) {
            EngineMemory own = new StandInMemories().allocate(MEMORY_BYTES);
            standIn.delay(LONG_DELAY_NS);
            Region source = writer.engine().register(own.memory());
            RemoteWindow window = remote(grant(everything(), Long.MAX_VALUE, round));
            for (int i = 0; i < 4; i++) {
                writer.submit(peer, whole(source, target, window), round * 4L + i);
            }
            if (round % 2 == 0) {
                writer.await(
                        "a slab that left", () -> writer.engine().counters().of(TransferCounter.BYTES_SENT) > 0);
            }
            writer.engine().disconnect(peer);
            writer.await("its end", () -> writer.engine().counters().of(TransferCounter.REQUESTS_IN_FLIGHT) == 0);
            source.deregister();
            own.close();
            peer = connectTo(target);
        }
        standIn.delay(0);
        fillSource(new Random(2));
        writeAll(target, peer, 99);
    }

    /** Where no slabs are granted, the next transport is chosen before anything is posted. */
    @Test
    void shouldReachATargetOnADeviceByTheNextTransportWithoutSlabs() {
        TransferOptions without = options().with(TransferOptions.LANDING_SLABS, 0);
        try (DrivenEngine onDevice = StagedMemory.open(without, MEMORY_BYTES)) {
            assertThat(onDevice.engine().notes())
                    .singleElement()
                    .asString()
                    .contains("libfabric does not receive for device", "landing_slabs is 0");
            fillSource(new Random(3));
            Peer by = connectTo(onDevice);
            assertThat(by.transport()).isEqualTo(TransferOptions.TCP);
            writeAll(onDevice, by, 1);
        }
    }
}
