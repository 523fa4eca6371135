package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.testkit.device.DeviceAllocation;
import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.cuda.CudaTransport;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.lang.foreign.MemorySegment;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Engines that have host memory beside a device's, as context rows are, and engines that cannot meet on such memory. */
final class CudaMixedMemoryTest extends WriterAndTarget {
    private static final long ROW_BYTES = 12_345;
    private static final int NOT_SUPPORTED = 801;

    @Override
    protected String transport() {
        return TransferOptions.CUDA;
    }

    /** Each side's rows in host memory, and its pages on a device: all four ways, and no copy of memory that is not page-locked. */
    @Test
    void shouldWriteBetweenHostAndDevice() {
        StandInCuda standIn = StandInCuda.load();
        long pageable = standIn.pageableCopies();
        try (HostMemory rows = HostMemory.allocate("rows", MEMORY_BYTES);
                HostMemory targetRows = HostMemory.allocate("target rows", MEMORY_BYTES)) {
            Region hostSource = writer.engine().register(rows.shared());
            Region hostTarget = target.engine().register(targetRows.shared());
            fillSource(new Random(1));
            MemorySegment.copy(writer.memory(), 0, rows.memory(), 0, MEMORY_BYTES);
            MemorySegment[] targets = {target.memory(), targetRows.memory()};
            long cookie = 0;
            for (Region source : new Region[] {writer.region(), hostSource}) {
                for (Region to : new Region[] {target.region(), hostTarget}) {
                    write(source, to, ++cookie);
                    MemorySegment seen = targets[to == hostTarget ? 1 : 0];
                    assertThat(seen.asSlice(77, ROW_BYTES)
                                    .mismatch(rows.memory().asSlice(cookie, ROW_BYTES)))
                            .as("write %d", cookie)
                            .isEqualTo(-1);
                }
            }
            assertThat(standIn.pageableCopies()).isEqualTo(pageable);
            writer.engine().close();
            target.engine().close();
        }
    }

    /** Handles, mappings, reservations and page-locked memory of both sides. */
    @Test
    void shouldGiveBackWhatItHasOfTheDriver() {
        shouldWriteBetweenHostAndDevice();
        writer.close();
        target.close();
        assertThat(StandInCuda.load().held()).isZero();
        writer = open("writer");
        target = open("target");
    }

    /** What the contract suite would see of a transport that pushes immediates before their copies are done. */
    @Test
    void shouldShowAnImmediateThatGoesBeforeItsBytes() {
        StandInCuda standIn = StandInCuda.load();
        fillSource(new Random(2));
        int[] all = IntStream.range(0, PAGE_COUNT).toArray();
        int[] scattered = shuffled(PAGE_COUNT, new Random(3));
        boolean[] right = {true};
        target.onFilled(() -> {
            for (int i = 0; i < PAGE_COUNT; i++) {
                right[0] &= pageArrived(all[i], scattered[i]);
            }
        });
        standIn.lie(true);
        try {
            ImmWindow window = grant(everything(), PAGE_COUNT, 1);
            writer.submit(peer, paged(window, all, scattered), 1);
            DrivenEngine.awaitBoth("the window", target, writer, () -> target.filled.contains(1L));
        } finally {
            standIn.lie(false);
        }
        assertThat(right[0]).isFalse();
    }

    private void write(Region source, Region to, long cookie) {
        WindowArea area = WindowArea.of(to.descriptor(), WindowRanges.ofEqual(new long[] {77}, ROW_BYTES));
        ImmWindow window = target.engine().openWindow(admission, area, 1, cookie);
        RemoteWindow remote = writer.engine().allow(peer, window.imm(), area);
        writer.submit(peer, new SingleWrite(source, cookie, to.descriptor(), 77, ROW_BYTES, remote, 1), cookie);
        DrivenEngine.awaitBoth("the window", target, writer, () -> target.filled.contains(cookie));
        DrivenEngine.awaitBoth("its completion", writer, target, () -> writer.completed.contains(cookie));
    }

    @Test
    void shouldRefuseMemoryThatNoProcessCanHave() {
        try (DeviceDriver driver = StandInCuda.driver();
                DeviceAllocation alone = DeviceAllocation.unexportable(driver, 0, DeviceAllocation.GRANULE_BYTES)) {
            assertThatThrownBy(() -> target.engine().register(alone.memory(4096)))
                    .isInstanceOf(IllegalArgumentException.class)
                    .hasMessageContaining("memory of device 0 is reached by none of the transports [cuda]");
            Memory nothing = new Memory.Device(0, 4096, 4096, Memory.HandleKind.NONE);
            assertThatThrownBy(() -> target.engine().register(nothing))
                    .isInstanceOf(IllegalArgumentException.class)
                    .hasMessageContainingAll(
                            "memory of device 0 at 0x1000 is not device memory", "cuPointerGetAttribute");
        }
    }

    /** What has a device's memory is not sent by what cannot read it. */
    @Test
    void shouldFindNothingInCommonWithAPeerWithoutDevices() {
        try (DrivenEngine host =
                new DrivenEngine(TransferOptions.defaults().withTransports("shm", "tcp"), "host", MEMORY_BYTES)) {
            Peer other = writer.engine()
                    .connect(
                            host.engine().address(),
                            host.engine().admit("writer").key(),
                            "host");
            writer.await("the loss", () -> writer.lost.containsKey(other.id()));
            assertThat(writer.lost.get(other.id()).fault()).isEqualTo(TransferFault.UNREACHABLE);
        }
    }

    /** As between devices that are not peers: told before a write is posted, so that another transport is taken. */
    @Test
    void shouldNotOpenAPathToMemoryThatItsDeviceDoesNotReach() {
        try (DrivenEngine third = open("third")) {
            StandInCuda.load().fail("cuMemSetAccess", 1, NOT_SUPPORTED);
            Peer other = writer.engine()
                    .connect(
                            third.engine().address(),
                            third.engine().admit("writer").key(),
                            "third");
            writer.await("the loss", () -> writer.lost.containsKey(other.id()));
            assertThat(writer.lost.get(other.id()).fault()).isEqualTo(TransferFault.UNREACHABLE);
            assertThat(writer.lost.get(other.id()).detail()).contains("does not reach the peer's: cuMemSetAccess");
            assertThat(writer.ready).doesNotContain(other);
        }
    }

    @Test
    void shouldSayWhyThereIsNoDriver() {
        TransferOptions without =
                TransferOptions.defaults().with(CudaTransport.LIBRARY, "libcuda-that-nothing-has.so.1");
        assertThatThrownBy(() -> TransferEngines.open(without.withTransports("cuda")))
                .hasMessageContainingAll("NVIDIA's driver cannot be loaded", "leave cuda out of the transports");
        try (TransferEngine engine = TransferEngines.open(without.withTransports("cuda", "tcp"))) {
            assertThat(engine.address().transports()).hasSize(1);
            assertThat(engine.unavailable()).singleElement().asString().contains("NVIDIA's driver cannot be loaded");
        }
    }
}
