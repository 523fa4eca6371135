package io.kvmessenger.transfer.cuda;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.ExportForm;
import io.kvmessenger.transfer.device.NoDeviceException;
import io.kvmessenger.transfer.samehost.RegionRecord;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Peers that say what is not true of their memory. */
final class PeerMemoriesTest {
    private static final String HOME = System.getProperty("kvmessenger.cuda-stand-in", "");
    private static final long GRANULE_BYTES = 2 << 20;
    private static final LibC LIB_C = new FfmLibC();

    private DeviceDriver driver;
    private PeerMemories memories;
    private int fd;

    @BeforeEach
    void open() throws NoDeviceException {
        assumeTrue(
                !HOME.isEmpty(),
                "no stand-in for NVIDIA's driver: -Dkvmessenger.cuda-stand-in names no folder of it,"
                        + " examples/setup/find-cuda-stand-in does");
        driver = DeviceDriver.open(HOME + "/libcuda.so.1");
        memories = new PeerMemories(LIB_C, driver, () -> 0);
        // What the stand-in exports is a file of whole granules, named after its device.
        fd = ForeignMemory.createFile(LIB_C, "stand-in-device-0-0", GRANULE_BYTES);
    }

    @AfterEach
    void close() {
        if (driver != null) {
            memories.close();
            driver.close();
            LIB_C.close(fd);
        }
    }

    private static DeviceRecord region(int regionId, int partCount) {
        return new DeviceRecord(
                regionId, new ExportForm(4096, 4096, partCount * GRANULE_BYTES, partCount, new byte[64]));
    }

    @Test
    void shouldShowARegionWhenAllItsPartsAreThere() {
        memories.addDevice(region(3, 2));
        assertThat(memories.isIncomplete()).isTrue();
        memories.addPart(new PartRecord(3, GRANULE_BYTES), fd);
        assertThat(memories.find(3)).isNull();
        memories.addPart(new PartRecord(3, GRANULE_BYTES), fd);
        assertThat(memories.find(3).lengthBytes()).isEqualTo(4096);
        assertThat(memories.isIncomplete()).isFalse();
        memories.addFile(new RegionRecord(4, 4096), fd);
        assertThat(memories.find(4).lengthBytes()).isEqualTo(4096);
    }

    @Test
    void shouldRefusePartsThatWereNotAnnounced() {
        assertThatThrownBy(() -> memories.addPart(new PartRecord(3, GRANULE_BYTES), fd))
                .isInstanceOf(IllegalArgumentException.class);
        memories.addDevice(region(3, 2));
        for (PartRecord wrong : new PartRecord[] {
            null, new PartRecord(4, GRANULE_BYTES), new PartRecord(3, 0), new PartRecord(3, 3 * GRANULE_BYTES)
        }) {
            assertThatThrownBy(() -> memories.addPart(wrong, fd)).isInstanceOf(IllegalArgumentException.class);
        }
        assertThatThrownBy(() -> memories.addPart(new PartRecord(3, GRANULE_BYTES), -1))
                .isInstanceOf(IllegalArgumentException.class);
        assertThatThrownBy(() -> memories.addDevice(region(4, 1))).isInstanceOf(IllegalArgumentException.class);
        memories.addPart(new PartRecord(3, GRANULE_BYTES), fd);
        assertThatThrownBy(() -> memories.addPart(new PartRecord(3, GRANULE_BYTES / 2), fd))
                .as("a last part that leaves a gap")
                .isInstanceOf(IllegalArgumentException.class);
    }

    @Test
    void shouldRefuseARegionTwice() {
        memories.addFile(new RegionRecord(4, 4096), fd);
        assertThatThrownBy(() -> memories.addDevice(region(4, 1))).isInstanceOf(IllegalArgumentException.class);
        assertThatThrownBy(() -> memories.addFile(new RegionRecord(4, 4096), fd))
                .isInstanceOf(IllegalArgumentException.class);
    }

    /** The driver, not the peer's word, says how long a part is. */
    @Test
    void shouldRefuseAPartThatIsShorterThanWasAnnounced() {
        memories.addDevice(new DeviceRecord(3, new ExportForm(4096, 0, 2 * GRANULE_BYTES, 1, new byte[64])));
        assertThatThrownBy(() -> memories.addPart(new PartRecord(3, 2 * GRANULE_BYTES), fd))
                .isInstanceOf(IllegalStateException.class)
                .hasMessageContaining("cuMemMap");
    }

    @Test
    void shouldReadBackWhatItWrote() {
        byte[] handle = new byte[64];
        handle[63] = 7;
        DeviceRecord device = new DeviceRecord(9, new ExportForm(10, 20, 40, 0, handle));
        assertThat(DeviceRecord.parse(device.encode())).isEqualTo(device);
        PartRecord part = new PartRecord(9, 30);
        assertThat(PartRecord.parse(part.encode())).isEqualTo(part);
    }

    @Test
    void shouldNotReadWhatCannotBe() {
        assertThat(DeviceRecord.parse(MemorySegment.ofArray(new byte[103]))).isNull();
        MemorySegment outside = region(3, 1).encode();
        outside.set(ValueLayout.JAVA_LONG_UNALIGNED, 16, Long.MAX_VALUE);
        assertThat(DeviceRecord.parse(outside)).isNull();
        assertThat(PartRecord.parse(MemorySegment.ofArray(new byte[15]))).isNull();
    }
}
