package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Memory.HandleKind;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.spi.FakeDomain;
import io.kvmessenger.transfer.spi.RemoteKey;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.List;
import org.junit.jupiter.api.Test;

class RegionTableTest {
    private static final long LENGTH_BYTES = 1 << 20;
    private static final Memory.Device ON_DEVICE =
            new Memory.Device(3, 0x7f00_0000_0000L, LENGTH_BYTES, HandleKind.POSIX_FD);

    private final RegionTable table = new RegionTable(new FfmLibC());

    @Test
    void shouldRefuseMemoryOfADeviceThatNoDomainReaches() {
        table.use(List.of(new FakeDomain("shm", 0), new FakeDomain("tcp", 0)));
        assertThatThrownBy(() -> table.add(ON_DEVICE))
                .hasMessage("memory of device 3 is reached by none of the transports [shm, tcp]:"
                        + " name cuda among them and allocate it so that other processes can map it, or place the KV"
                        + " cache in host memory");
        assertThat(table.count()).isZero();
    }

    @Test
    void shouldRegisterMemoryOfADeviceWithTheDomainThatReachesIt() {
        DeviceDomain nic = new DeviceDomain();
        FakeDomain mapper = new FakeDomain("shm", 0);
        table.use(List.of(mapper, nic));
        Region region = table.add(ON_DEVICE);
        assertThat(region.memory()).isEqualTo(ON_DEVICE);
        assertThat(region.descriptor().lengthBytes()).isEqualTo(LENGTH_BYTES);
        assertThat(region.descriptor().shareable()).isFalse();
        assertThat(table.reachesAll(nic)).isTrue();
        assertThat(table.reachesAll(mapper)).isFalse();
        assertThatThrownBy(region::hostBytes)
                .isInstanceOf(AssertionError.class)
                .hasMessage("the processor copies memory of device 3");
    }

    @Test
    void shouldShareWhatIsSealedAndNothingElse() {
        try (HostMemory sealed = HostMemory.allocate("region-table-test", LENGTH_BYTES)) {
            assertThat(table.add(sealed.shared()).descriptor().shareable()).isTrue();
        }
        Memory.Host ofThisProcess = Memory.host(Arena.ofAuto().allocate(LENGTH_BYTES));
        assertThat(table.add(ofThisProcess).descriptor().shareable()).isFalse();
    }

    @Test
    void shouldRefuseHeapMemory() {
        assertThatThrownBy(() -> table.add(Memory.host(MemorySegment.ofArray(new byte[64]))))
                .hasMessage("a region must be native memory, this is on the Java heap");
    }

    @Test
    void shouldRefuseMemoryOfNoDevice() {
        assertThatThrownBy(() -> new Memory.Device(-1, 64, 64, HandleKind.NONE)).hasMessageContaining("of device -1");
    }

    /** Like a NIC that reads and writes a device's memory. */
    private static final class DeviceDomain extends FakeDomain {
        DeviceDomain() {
            super("nic", 0);
        }

        @Override
        public RemoteKey register(Region region) {
            return new RemoteKey(
                    region.descriptor().regionId(), region.descriptor().lengthBytes(), Memory.Host.NOT_SHAREABLE);
        }
    }
}
