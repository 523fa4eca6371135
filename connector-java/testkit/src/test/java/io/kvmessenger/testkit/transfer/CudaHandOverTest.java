package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.testkit.device.DeviceAllocation;
import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.cuda.CudaTransport;
import io.kvmessenger.transfer.device.DeviceCopyStream;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.PinnedMemory;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Two processes: one has memory of a device in some form, the other writes into it, and the first looks at what has arrived. */
@Timeout(900)
final class CudaHandOverTest {
    private static final int PAGE_BYTES = 4096;
    private static final int PAGE_COUNT = 1100;
    private static final long MEMORY_BYTES = (long) PAGE_BYTES * PAGE_COUNT;
    private static final long OFFSET_BYTES = 3L * PAGE_BYTES;

    @ParameterizedTest
    @ValueSource(strings = {"one handle", "three handles", "legacy"})
    void shouldWriteIntoAnotherProcessesMemory(String form) throws IOException, InterruptedException {
        Process child = new ProcessBuilder(ChildJvm.command(CudaHandOverTest.class, StandInCuda.library(), form))
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        var given = new BufferedReader(new InputStreamReader(child.getInputStream(), StandardCharsets.UTF_8));
        try (DrivenEngine writer = engine("three handles")) {
            List<String> words = List.of(given.readLine().split(" ", -1));
            EngineAddress address = new EngineAddress(List.of(new TransportAddress("cuda", words.get(0))));
            Peer peer = writer.engine().connect(address, HexFormat.of().parseHex(words.get(1)), "child");
            RegionDescriptor region =
                    new RegionDescriptor(Integer.parseInt(words.get(2)), MEMORY_BYTES, RegionDescriptor.VERSION, false);
            RemoteWindow window = writer.engine().allow(peer, Integer.parseInt(words.get(3)), all(region));
            writer.await("the child", () -> writer.ready.contains(peer) || !writer.lost.isEmpty());
            assertThat(writer.lost).isEmpty();
            for (long i = 0; i < MEMORY_BYTES; i += Long.BYTES) {
                writer.memory().set(ValueLayout.JAVA_LONG, i, word(i));
            }
            writer.submit(peer, backwards(writer, region, window), 1);
            writer.await("the completion", () -> writer.completed.contains(1L));
            assertThat(given.readLine()).isEqualTo("right");
        } finally {
            child.getOutputStream().close();
            assertThat(child.waitFor()).isZero();
        }
    }

    private static long word(long offset) {
        return offset * 0x9E3779B97F4A7C15L;
    }

    private static WindowArea all(RegionDescriptor region) {
        return WindowArea.of(region, WindowRanges.ofEqual(new long[] {0}, MEMORY_BYTES));
    }

    /** The last page of the source goes to the first of the target. */
    private static PagedWrites backwards(DrivenEngine writer, RegionDescriptor region, RemoteWindow window) {
        int[] up = IntStream.range(0, PAGE_COUNT).toArray();
        int[] down = IntStream.range(0, PAGE_COUNT).map(i -> PAGE_COUNT - 1 - i).toArray();
        return new PagedWrites(
                writer.region(),
                new PageList(down, 0, PAGE_COUNT, PAGE_BYTES, 0),
                region,
                new PageList(up, 0, PAGE_COUNT, PAGE_BYTES, 0),
                PAGE_BYTES,
                window,
                1);
    }

    private static DrivenEngine engine(String form) {
        DeviceDriver driver = StandInCuda.driver();
        StandInCuda standIn = StandInCuda.load();
        standIn.delay(10_000);
        long granule = DeviceAllocation.GRANULE_BYTES;
        DeviceAllocation allocation = switch (form) {
            case "one handle" -> DeviceAllocation.ofHandles(driver, 1, 1, 3 * granule);
            case "three handles" -> DeviceAllocation.ofHandles(driver, 0, 3, granule);
            default -> DeviceAllocation.legacy(driver, 1, 3 * granule);
        };
        EngineMemory memory = new EngineMemory() {
            @Override
            public Memory memory() {
                return allocation.memory(OFFSET_BYTES, MEMORY_BYTES);
            }

            @Override
            public MemorySegment bytes() {
                return standIn.bytes(allocation.address() + OFFSET_BYTES, MEMORY_BYTES);
            }

            @Override
            public void close() {
                allocation.close();
                driver.close();
            }
        };
        TransferOptions options =
                TransferOptions.defaults().withTransports("cuda").with(CudaTransport.LIBRARY, StandInCuda.library());
        return new DrivenEngine(options, memory, TransferEngines.open(options));
    }

    /** The other process: what arrived is copied by the driver, as a test on hardware would have to. */
    public static void main(String[] arguments) throws IOException {
        try (DrivenEngine target = engine(arguments[1])) {
            Admission admission = target.engine().admit("parent");
            RegionDescriptor region = target.region().descriptor();
            int imm = target.engine()
                    .openWindow(admission, all(region), PAGE_COUNT, 1)
                    .imm();
            System.out.println(target.engine().address().transports().getFirst().location() + " "
                    + HexFormat.of().formatHex(admission.key()) + " " + region.regionId() + " " + imm);
            target.await("the window", () -> target.filled.contains(1L));
            System.out.println(verdict((Memory.Device) target.region().memory()));
            // Its parent has heard it, or is gone.
            System.in.readAllBytes();
        }
    }

    private static String verdict(Memory.Device memory) {
        try (DeviceDriver driver = StandInCuda.driver();
                PinnedMemory host = PinnedMemory.allocate(driver, memory.ordinal(), MEMORY_BYTES)) {
            try (DeviceCopyStream stream = DeviceCopyStream.open(driver, memory.ordinal())) {
                stream.toHost(host.memory().address(), memory.address(), MEMORY_BYTES);
                stream.mark();
            }
            for (long i = 0; i < MEMORY_BYTES; i += Long.BYTES) {
                long page = PAGE_COUNT - 1 - i / PAGE_BYTES;
                if (host.memory().get(ValueLayout.JAVA_LONG, i) != word(page * PAGE_BYTES + i % PAGE_BYTES)) {
                    return "wrong at " + i;
                }
            }
            return "right";
        }
    }
}
