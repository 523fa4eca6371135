package io.kvmessenger.transfer.verbs;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import io.kvmessenger.foreign.VerbsApi;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.device.CopyStream;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.device.DmaBuf;
import io.kvmessenger.transfer.device.NicWrites;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Device memory that RDMA devices register by dma-buf: all of them or none, with the descriptor closed; and paths to and from it. */
final class DeviceRegionsTest {
    private static final int ALL = 1000;
    private static final int REGION_ID = PathPair.REGION_ID + 2;
    private static final LibC LIB_C = new FfmLibC();

    private final PathPair paths = new PathPair(2, 2);
    private final Exports exports = new Exports();
    private final DeviceRegions regions = new DeviceRegions(paths.writerNics, exports, LIB_C, true);
    /** In host memory here: the devices of the test find bytes by address. */
    private final MemorySegment bytes = paths.arena.allocate(paths.source.byteSize());

    private final Memory.Device memory = device(0);

    @AfterEach
    void close() {
        paths.library.refusedCall = "";
        paths.close();
        assertThat(paths.library.objects()).isZero();
        assertThat(exports.isOpen()).isFalse();
    }

    private Memory.Device device(int ordinal) {
        return new Memory.Device(ordinal, bytes.address(), bytes.byteSize(), Memory.HandleKind.POSIX_FD);
    }

    @Test
    void shouldRegisterWithEachAndCloseTheDescriptor() {
        assertThat(regions.add(REGION_ID, memory)).isTrue();
        assertThat(paths.library.dmaBufs).hasSize(2).allSatisfy(registered -> {
            assertThat(registered.fd()).isEqualTo(exports.fd);
            assertThat(registered.offsetBytes()).isEqualTo(Exports.OFFSET_BYTES);
            // Strictly ordered: what brings a completion behind writes into a device is not said of relaxed ones.
            assertThat(registered.access())
                    .isEqualTo(VerbsApi.IBV_ACCESS_LOCAL_WRITE | VerbsApi.IBV_ACCESS_REMOTE_WRITE);
        });
        assertThat(exports.isOpen()).isFalse();
        assertThat(regions.has(device(0))).isTrue();
        assertThat(regions.has(device(1))).isFalse();
        assertThat(regions.notes()).singleElement().asString().contains("w0, w1", "never run on hardware");
    }

    @Test
    void shouldRegisterWithNoneWhereOneRefuses() {
        int before = paths.library.objects();
        paths.library.refusedCall = "ibv_reg_dmabuf_mr";
        paths.library.refusingDevice = "w1";
        assertThat(regions.add(REGION_ID, memory)).isFalse();
        assertThat(paths.library.objects()).isEqualTo(before);
        assertThat(paths.writerNics).allMatch(nic -> nic.regions().of(REGION_ID) == null);
        assertThat(exports.isOpen()).isFalse();
        assertThat(regions.has(memory)).isFalse();
        assertThat(regions.notes()).singleElement().asString().contains("ibv_reg_dmabuf_mr on w1: ENOMEM");
    }

    @Test
    void shouldSayWhyTheDriverRefused() {
        exports.refused = new DeviceFault("cuMemGetHandleForAddressRange", "CUDA_ERROR_NOT_SUPPORTED");
        assertThat(regions.add(REGION_ID, memory)).isFalse();
        assertThat(regions.notes()).singleElement().asString().contains("CUDA_ERROR_NOT_SUPPORTED");
        assertThat(paths.library.dmaBufs).isEmpty();
    }

    /** As a source it could be read: but then it would be registered for some peers and staged for others. */
    @Test
    void shouldNotReachADeviceWhoseKernelsDoNotSeeTheWrites() {
        exports.unordered = new DeviceFault("ordering", "a device that flushes nothing");
        assertThat(regions.add(REGION_ID, memory)).isFalse();
        assertThat(exports.fd).isEqualTo(Exports.NONE);
    }

    @Test
    void shouldMakeVisibleOncePerDeviceUntilTheLastRegionGoes() {
        Memory.Device other =
                new Memory.Device(0, paths.memory.address(), paths.memory.byteSize(), Memory.HandleKind.POSIX_FD);
        assertThat(regions.add(REGION_ID, memory)).isTrue();
        assertThat(regions.add(REGION_ID + 1, other)).isTrue();
        regions.makeVisible();
        assertThat(exports.flushes).isEqualTo(1);
        regions.remove(REGION_ID);
        assertThat(regions.has(memory)).isFalse();
        regions.makeVisible();
        assertThat(exports.flushes).isEqualTo(2);
        regions.remove(REGION_ID + 1);
        regions.makeVisible();
        assertThat(exports.flushes).isEqualTo(2);
        paths.writerNics.forEach(nic -> nic.regions().remove(REGION_ID));
        paths.writerNics.forEach(nic -> nic.regions().remove(REGION_ID + 1));
    }

    @Test
    void shouldWriteFromADevicesMemory() {
        paths.opened();
        bytes.copyFrom(paths.source);
        assertThat(regions.add(REGION_ID, memory)).isTrue();
        paths.postFromDevice(1, memory, 3); // asks for the peer's region
        paths.turn();
        assertThat(paths.postFromDevice(1, memory, 3)).isEqualTo(3);
        paths.library.deliver(ALL);
        paths.turn();
        assertThat(paths.sent).containsExactly(1L);
        assertThat(paths.arrived(0) && paths.arrived(1) && paths.arrived(2)).isTrue();
    }

    @Test
    void shouldMakeVisibleWhatHasLandedBeforeItIsCounted() {
        paths.opened();
        paths.postFirst(1, 0, 2);
        paths.library.deliver(ALL);
        paths.countedWhenMadeVisible = -1;
        paths.turn();
        assertThat(paths.countedWhenMadeVisible).isZero();
        assertThat(paths.port.arrivedWeight).isEqualTo(2);
    }

    @Test
    void shouldCountNothingOfWhatCannotBeMadeVisible() {
        paths.opened();
        paths.postFirst(1, 0, 2);
        paths.library.deliver(ALL);
        paths.invisible = new DeviceFault("cuFlushGPUDirectRDMAWrites", "CUDA_ERROR_UNKNOWN");
        paths.turn();
        assertThat(paths.port.arrivedWeight).isZero();
        assertThat(paths.targetChannel.events)
                .contains("COPY_FAILED cuFlushGPUDirectRDMAWrites failed with CUDA_ERROR_UNKNOWN");
    }

    /** Its pages are the engine's again: what came late must not show in what is written there next. */
    @Test
    void shouldMakeVisibleWhatHasLandedUncountedWhenPathsEnd() {
        paths.opened();
        paths.postFirst(1, 0, 2);
        paths.library.deliver(ALL);
        paths.countedWhenMadeVisible = -1;
        paths.target.close();
        assertThat(paths.countedWhenMadeVisible).isZero();
        assertThat(paths.port.arrivedWeight).isZero();
        paths.invisible = new DeviceFault("cuFlushGPUDirectRDMAWrites", "CUDA_ERROR_UNKNOWN");
        paths.target.close();
        assertThat(paths.target.isOver()).isTrue();
    }

    /** A driver whose dma-bufs are files. */
    private static final class Exports implements DeviceAccess {
        static final long OFFSET_BYTES = 64;
        static final int NONE = -1;
        private static final String NAME = "exported-dma-buf";
        int fd = NONE;
        DeviceFault refused;
        DeviceFault unordered;
        int flushes;
        private final NicWrites writes = () -> flushes++;

        boolean isOpen() {
            try {
                return fd != NONE
                        && Files.readSymbolicLink(Path.of("/proc/self/fd/" + fd))
                                .toString()
                                .contains(NAME);
            } catch (IOException e) {
                return false;
            }
        }

        @Override
        public String refusal(int ordinal) {
            return null;
        }

        @Override
        public DmaBuf exportDmaBuf(Memory.Device memory) {
            if (refused != null) {
                throw refused;
            }
            try (Arena arena = Arena.ofConfined()) {
                fd = LIB_C.memfd_create(arena.allocateFrom(NAME), MemoryApi.MFD_CLOEXEC);
            }
            return new DmaBuf(fd, OFFSET_BYTES);
        }

        @Override
        public NicWrites nicWrites(int ordinal) {
            if (unordered != null) {
                throw unordered;
            }
            return writes;
        }

        @Override
        public CopyStream openStream(int ordinal) {
            throw new AssertionError("nothing is copied");
        }

        @Override
        public MemorySegment pin(long lengthBytes) {
            throw new AssertionError("nothing is pinned");
        }

        @Override
        public void close() {}
    }
}
