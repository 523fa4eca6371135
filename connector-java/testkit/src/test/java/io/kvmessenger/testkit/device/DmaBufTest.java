package io.kvmessenger.testkit.device;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.CudaApi;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.DeviceExport;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.device.DmaBuf;
import io.kvmessenger.transfer.device.DriverAccess;
import io.kvmessenger.transfer.device.ImportedMemory;
import io.kvmessenger.transfer.device.NicWrites;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.function.Consumer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What the driver exports of which memory for a NIC, and what it says of a NIC's writes. */
final class DmaBufTest {
    private static final long PAGE_BYTES = 4096;
    private static final int COHERENT = CudaApi.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;

    private final StandInCuda standIn = StandInCuda.load();
    private final DeviceDriver driver = StandInCuda.driver();
    private final DriverAccess access = new DriverAccess(StandInCuda.library());

    @BeforeEach
    void open() {
        assertThat(access.refusal(0)).isNull();
    }

    @AfterEach
    void close() {
        standIn.attribute(COHERENT, 0);
        standIn.attribute(CudaApi.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 1);
        access.close();
        driver.close();
    }

    /** From within a page to within another, over the border of two handles: a NIC's bytes are the region's. */
    @ParameterizedTest
    @ValueSource(longs = {0, 4096, 12_345})
    void shouldExportThePagesThatHaveTheMemory(long offsetBytes) {
        try (DeviceAllocation allocation = DeviceAllocation.ofHandles(driver, 1, 2, DeviceAllocation.GRANULE_BYTES)) {
            long lengthBytes = DeviceAllocation.GRANULE_BYTES + 777;
            Memory.Device memory = allocation.memory(offsetBytes, lengthBytes);
            DmaBuf exported = access.exportDmaBuf(memory);
            assertThat(exported.offsetBytes()).isEqualTo(offsetBytes % PAGE_BYTES);
            long region = standIn.nicRegister(exported.fd(), exported.offsetBytes(), lengthBytes);
            assertThat(new FfmLibC().close(exported.fd())).isZero();
            standIn.bytes(memory.address(), lengthBytes).set(ValueLayout.JAVA_BYTE, lengthBytes - 1, (byte) 42);
            MemorySegment seen = Arena.ofAuto().allocate(1);
            assertThat(standIn.nicRead(region, lengthBytes - 1, seen)).isTrue();
            assertThat(seen.get(ValueLayout.JAVA_BYTE, 0)).isEqualTo((byte) 42);
            assertThat(standIn.nicRead(region, lengthBytes, seen)).isFalse();
            standIn.nicDeregister(region);
        }
    }

    @Test
    void shouldExportMemoryOfCudaMalloc() {
        try (DeviceAllocation allocation = DeviceAllocation.legacy(driver, 0, DeviceAllocation.GRANULE_BYTES)) {
            DmaBuf exported = access.exportDmaBuf(allocation.memory(PAGE_BYTES, PAGE_BYTES));
            assertThat(new FfmLibC().close(exported.fd())).isZero();
        }
    }

    /** How its writes are seen would be asked of the wrong one. */
    @Test
    void shouldNotTakeMemoryForAnotherDevices() {
        try (DeviceAllocation allocation = DeviceAllocation.legacy(driver, 0, DeviceAllocation.GRANULE_BYTES)) {
            Memory.Device wrong = new Memory.Device(1, allocation.address(), PAGE_BYTES, Memory.HandleKind.NONE);
            assertThatThrownBy(() -> access.exportDmaBuf(wrong))
                    .isInstanceOf(DeviceFault.class)
                    .hasMessageContaining("memory of device 0");
        }
    }

    /** As the lead's messenger has the memory of other ranks, and as an H100 answers. */
    @Test
    void shouldExportWhatWasImported() {
        withImported(
                0,
                memory -> assertThat(
                                new FfmLibC().close(access.exportDmaBuf(memory).fd()))
                        .isZero());
    }

    /** A driver names the device that holds it, not the one that imported it. */
    @Test
    void shouldNotTakeImportedMemoryForTheImporters() {
        withImported(
                1,
                memory -> assertThatThrownBy(() -> access.exportDmaBuf(memory))
                        .isInstanceOf(DeviceFault.class)
                        .hasMessageContaining("memory of device 1"));
    }

    /** Memory of this device, taken in for device 0. */
    private void withImported(int owner, Consumer<Memory.Device> use) {
        try (DeviceAllocation allocation =
                DeviceAllocation.ofHandles(driver, owner, 1, DeviceAllocation.GRANULE_BYTES)) {
            DeviceExport export = DeviceExport.of(driver, allocation.memory(DeviceAllocation.GRANULE_BYTES));
            try (ImportedMemory imported = new ImportedMemory(driver, 0, export.form())) {
                int part = export.openPart(0);
                imported.addPart(part, export.partBytes(0));
                assertThat(new FfmLibC().close(part)).isZero();
                use.accept(new Memory.Device(
                        0, imported.addressFor(0), imported.lengthBytes(), Memory.HandleKind.POSIX_FD));
            }
        }
    }

    /** Its kernels would not see in time what a NIC wrote, and nothing could be done about it. */
    @Test
    void shouldNotLandOnADeviceThatNeitherOrdersNorFlushes() {
        standIn.attribute(CudaApi.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 0);
        assertThatThrownBy(() -> access.nicWrites(0))
                .isInstanceOf(DeviceFault.class)
                .hasMessageContaining("flushes nothing");
    }

    @Test
    void shouldNotLandOnADeviceThatIsCoherentWithTheProcessor() {
        standIn.attribute(COHERENT, 1);
        assertThatThrownBy(() -> access.nicWrites(0))
                .isInstanceOf(DeviceFault.class)
                .hasMessageContaining("coherent with the processor");
    }

    @Test
    void shouldFlushInTheContextOfTheDevice() {
        try (DeviceAllocation allocation = DeviceAllocation.legacy(driver, 1, DeviceAllocation.GRANULE_BYTES)) {
            DmaBuf exported = access.exportDmaBuf(allocation.memory(PAGE_BYTES));
            long region = standIn.nicRegister(exported.fd(), 0, PAGE_BYTES);
            assertThat(new FfmLibC().close(exported.fd())).isZero();
            MemorySegment seen = standIn.bytes(allocation.address(), 1);
            MemorySegment written = Arena.ofAuto().allocate(1);
            written.set(ValueLayout.JAVA_BYTE, 0, (byte) 7);
            NicWrites other = access.nicWrites(0);
            NicWrites own = access.nicWrites(1);
            assertThat(standIn.nicWrite(region, 0, written)).isTrue();
            other.makeVisible();
            assertThat(seen.get(ValueLayout.JAVA_BYTE, 0)).isZero();
            own.makeVisible();
            assertThat(seen.get(ValueLayout.JAVA_BYTE, 0)).isEqualTo((byte) 7);
            standIn.nicDeregister(region);
        }
    }
}
