package io.kvmessenger.testkit.device;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.CudaApi;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.EngineMemory;
import io.kvmessenger.testkit.transfer.WriterAndTarget;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.device.CopyStream;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.device.DmaBuf;
import io.kvmessenger.transfer.device.DriverAccess;
import io.kvmessenger.transfer.device.NicWrites;
import io.kvmessenger.transfer.verbs.VerbsTransport;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Random;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What an engine does with device memory that verbs may reach by dma-buf: directly where all can, as before where one cannot. */
@Timeout(900)
final class DmaBufEnginesTest extends WriterAndTarget {
    private static final int OUT_OF_MEMORY = 2;
    private static final int[] ALL = IntStream.range(0, PAGE_COUNT).toArray();

    private final DmaBufEngines engines = new DmaBufEngines();
    private final StandInCuda standIn = engines.standIn;

    @Override
    protected String transport() {
        return TransferOptions.VERBS;
    }

    @Override
    protected TransferOptions options() {
        return super.options().withTransports(TransferOptions.VERBS, TransferOptions.TCP);
    }

    /** Both in device memory that is reached directly; a test opens others beside them. */
    @Override
    protected DrivenEngine open(String name) {
        return engines.onDevice(options(), MEMORY_BYTES);
    }

    @AfterEach
    void forget() {
        standIn.delay(0);
        standIn.attribute(CudaApi.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1);
        standIn.attribute(CudaApi.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 0);
        standIn.attribute(CudaApi.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 1);
    }

    /** All pages of the one to the other's; returns by which transport. */
    private static String move(DrivenEngine from, DrivenEngine to, long cookie) {
        byte[] bytes = new byte[(int) MEMORY_BYTES];
        new Random(cookie).nextBytes(bytes);
        from.memory().copyFrom(MemorySegment.ofArray(bytes));
        var admitted = to.engine().admit("writer");
        Peer by = from.engine().connect(to.engine().address(), admitted.key(), "target");
        from.await("the peer", () -> from.ready.contains(by));
        var window = to.openWindow(admitted, everything(), PAGE_COUNT, cookie);
        WindowArea area = WindowArea.of(to.region().descriptor(), everything());
        RemoteWindow remote = from.engine().allow(by, window.imm(), area);
        from.submit(
                by,
                new PagedWrites(from.region(), list(ALL), to.region().descriptor(), list(ALL), PAGE_BYTES, remote, 1),
                cookie);
        DrivenEngine.awaitBoth("window " + cookie, to, from, () -> to.filled.contains(cookie));
        assertThat(from.memory().mismatch(to.memory())).isEqualTo(-1);
        from.await("the end of " + cookie, () -> from.completed.contains(cookie));
        return by.transport();
    }

    /** From the writer to the target; each path's first immediate names no window, and is flushed for all the same. */
    private void awaitPaths() {
        target.await(
                "the paths of both NICs",
                () -> target.engine().counters().of(TransferCounter.PATHS_OPENED) == DmaBufEngines.NICS.length);
    }

    private long staged() {
        return standIn.callCount("cuMemHostAlloc");
    }

    private static long openDmaBufs() throws IOException {
        try (Stream<Path> descriptors = Files.list(Path.of("/proc/self/fd"))) {
            return descriptors.filter(DmaBufEnginesTest::isDmaBuf).count();
        }
    }

    private static boolean isDmaBuf(Path descriptor) {
        try {
            return Files.readSymbolicLink(descriptor).toString().contains("stand-in-dma-buf");
        } catch (IOException e) {
            return false; // closed meanwhile
        }
    }

    @Test
    void shouldReadAndLandWithoutACopy() throws IOException {
        long before = staged();
        long flushes = standIn.callCount("cuFlushGPUDirectRDMAWrites");
        assertThat(peer.transport()).isEqualTo(TransferOptions.VERBS);
        assertThat(move(writer, target, 1)).isEqualTo(TransferOptions.VERBS);
        assertThat(staged()).isEqualTo(before);
        assertThat(standIn.callCount("cuFlushGPUDirectRDMAWrites")).isGreaterThan(flushes);
        assertThat(openDmaBufs()).as("descriptors that are left open").isZero();
        assertThat(target.engine().notes())
                .singleElement()
                .asString()
                .contains("memory of device", "by dma-buf, through loop0, loop1", "never run on hardware", "dma_buf");
    }

    @Test
    void shouldFlushNothingForADeviceThatOrdersByItself() {
        standIn.attribute(
                CudaApi.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
                CudaApi.CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
        awaitPaths(); // the target's device was asked before, and is flushed
        long flushes = standIn.callCount("cuFlushGPUDirectRDMAWrites");
        try (DrivenEngine other = engines.onDevice(options(), MEMORY_BYTES)) {
            assertThat(move(writer, other, 2)).isEqualTo(TransferOptions.VERBS);
        }
        assertThat(standIn.callCount("cuFlushGPUDirectRDMAWrites")).isEqualTo(flushes);
    }

    /** Mutant: a flush that is left out shows. */
    @Test
    void shouldCatchWhatIsCountedBeforeItIsSeen() {
        try (DrivenEngine early = engines.onDevice(options(), MEMORY_BYTES, new Unflushed())) {
            assertThatThrownBy(() -> move(writer, early, 3)).isInstanceOf(AssertionError.class);
        }
    }

    @Test
    void shouldCountNothingThatCouldNotBeFlushed() {
        awaitPaths();
        var window = grant(everything(), PAGE_COUNT, 4);
        standIn.fail("cuFlushGPUDirectRDMAWrites", 1, OUT_OF_MEMORY);
        writer.submit(peer, paged(window, ALL, ALL), 4);
        writer.await("the loss", () -> writer.lost.containsKey(peer.id()));
        assertThat(writer.lost.get(peer.id()).fault()).isEqualTo(TransferFault.COPY_FAILED);
        assertThat(writer.lost.get(peer.id()).detail()).contains("cuFlushGPUDirectRDMAWrites");
        target.await("its end", () -> !target.closedAdmissions.isEmpty());
        assertThat(target.filled).isEmpty();
        assertThat(window.arrivedWeight()).isZero();
        assertThat(move(writer, target, 5)).as("others go on").isEqualTo(TransferOptions.VERBS);
    }

    /** One of two is enough: any of them may carry a peer's writes. */
    @Test
    void shouldStageAsBeforeWhereOneNicRegistersNone() throws IOException {
        engines.verbs.withoutDmaBuf.add("loop1");
        int regions = engines.verbs.regionCount();
        try (DrivenEngine without = engines.onDevice(options(), MEMORY_BYTES);
                DrivenEngine host = engines.onHost(options(), "host", MEMORY_BYTES)) {
            assertThat(engines.verbs.regionCount()).as("only the host's").isEqualTo(regions + 2);
            assertThat(without.engine().notes())
                    .singleElement()
                    .asString()
                    .contains("through host memory only", "ibv_reg_dmabuf_mr on loop1: EOPNOTSUPP");
            long before = staged();
            assertThat(move(without, host, 6)).as("gathered").isEqualTo(TransferOptions.VERBS);
            assertThat(staged()).isGreaterThan(before);
            assertThat(move(without, writer, 7))
                    .as("gathered, and landed directly")
                    .isEqualTo(TransferOptions.VERBS);
            assertThat(move(writer, without, 8)).as("by the next transport").isEqualTo(TransferOptions.TCP);
        }
        assertThat(openDmaBufs()).isZero();
    }

    @Test
    void shouldStageAsBeforeWhereTheDriverExportsNone() {
        standIn.attribute(CudaApi.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0);
        try (DrivenEngine without = engines.onDevice(options(), MEMORY_BYTES)) {
            assertThat(without.engine().notes()).singleElement().asString().contains("no support for dma-buf");
            assertThat(move(writer, without, 9)).isEqualTo(TransferOptions.TCP);
            assertThat(move(without, writer, 10)).isEqualTo(TransferOptions.VERBS);
        }
    }

    @Test
    void shouldLeaveItWhereItIsSwitchedOff() {
        long exports = standIn.callCount("cuMemGetHandleForAddressRange");
        try (DrivenEngine without = engines.onDevice(options().with(VerbsTransport.DMA_BUF, false), MEMORY_BYTES)) {
            assertThat(without.engine().notes()).isEmpty();
            assertThat(move(writer, without, 11)).isEqualTo(TransferOptions.TCP);
        }
        assertThat(standIn.callCount("cuMemGetHandleForAddressRange")).isEqualTo(exports);
    }

    /** The stand-in does not unmap what a NIC has. */
    @Test
    void shouldLetGoOfMemoryBeforeItIsFreed() {
        int regions = engines.verbs.regionCount();
        EngineMemory own = new StandInMemories().allocate(MEMORY_BYTES);
        Region region = target.engine().register(own.memory());
        assertThat(engines.verbs.regionCount()).isEqualTo(regions + DmaBufEngines.NICS.length);
        assertThatThrownBy(own::close).hasMessageContaining("cuMemUnmap");
        region.deregister();
        assertThat(engines.verbs.regionCount()).isEqualTo(regions);
        own.close();
    }

    @Test
    void shouldLetGoOfAllWithTheEngine() {
        int regions = engines.verbs.regionCount();
        engines.onDevice(options(), MEMORY_BYTES).close();
        assertThat(engines.verbs.regionCount()).isEqualTo(regions);
    }

    /** The driver of the stand-in, of whose devices it says that nothing is to be flushed. */
    private static final class Unflushed implements DeviceAccess {
        private final DeviceAccess sound = new DriverAccess(StandInCuda.library());

        @Override
        public String refusal(int ordinal) {
            return sound.refusal(ordinal);
        }

        @Override
        public CopyStream openStream(int ordinal) {
            return sound.openStream(ordinal);
        }

        @Override
        public MemorySegment pin(long lengthBytes) {
            return sound.pin(lengthBytes);
        }

        @Override
        public DmaBuf exportDmaBuf(Memory.Device memory) {
            return sound.exportDmaBuf(memory);
        }

        @Override
        public NicWrites nicWrites(int ordinal) {
            return NicWrites.ORDERED;
        }

        @Override
        public void close() {
            sound.close();
        }
    }
}
