package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.CudaLayout;
import io.kvmessenger.testkit.device.DeviceAllocation;
import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.DeviceExport;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.device.ExportForm;
import io.kvmessenger.transfer.device.ImportedMemory;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Memory of cudaMalloc that several devices copy to, and a driver that refuses one call while it is given back: what it
 * does not refuse is given back all the same.
 */
@Timeout(900)
final class ImportedLegacyMemoryTest {
    private static final int ILLEGAL_ADDRESS = 700;
    private static final int DEVICES = 2;

    /** The n-th call of a function while the memory is given back. */
    private record Case(String function, int nth) {}

    static Stream<Case> cases() {
        return Stream.of("cuCtxPushCurrent_v2", "cuIpcCloseMemHandle", "cuThreadExchangeStreamCaptureMode")
                .flatMap(function ->
                        IntStream.rangeClosed(1, callsOf(function)).mapToObj(nth -> new Case(function, nth)));
    }

    /** The capture mode is exchanged before and after each device's calls. */
    private static int callsOf(String function) {
        return function.startsWith("cuThread") ? 2 * DEVICES : DEVICES;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void shouldGiveBackWhatTheDriverDoesNotRefuse(Case given) throws IOException, InterruptedException {
        Process owner = new ProcessBuilder(ChildJvm.command(ImportedLegacyMemoryTest.class))
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        try (BufferedReader words =
                        new BufferedReader(new InputStreamReader(owner.getInputStream(), StandardCharsets.US_ASCII));
                DeviceDriver driver = StandInCuda.driver()) {
            StandInCuda standIn = StandInCuda.load();
            byte[] handle = HexFormat.of().parseHex(words.readLine());
            long lengthBytes = DeviceAllocation.GRANULE_BYTES;
            ImportedMemory memory = new ImportedMemory(
                    driver, 0, new ExportForm(lengthBytes, 0, lengthBytes, ExportForm.LEGACY, handle));
            long before = standIn.held();
            memory.addressFor(0);
            long ofOne = standIn.held() - before;
            memory.addressFor(1);
            assertThat(standIn.held()).isEqualTo(before + DEVICES * ofOne);
            standIn.fail(given.function, given.nth, ILLEGAL_ADDRESS);
            assertThatThrownBy(memory::close)
                    .isInstanceOf(DeviceFault.class)
                    .hasMessageContaining("CUDA_ERROR_ILLEGAL_ADDRESS");
            boolean isAfter = given.function.startsWith("cuThread") && given.nth % 2 == 0;
            assertThat(standIn.held()).isEqualTo(before + (isAfter ? 0 : ofOne));
        } finally {
            owner.destroyForcibly().waitFor();
        }
    }

    /** The owner, since no process may import its own: says the handle, and stays until it is ended. */
    public static void main(String[] arguments) throws InterruptedException {
        DeviceDriver driver = StandInCuda.driver();
        DeviceAllocation allocation = DeviceAllocation.legacy(driver, 0, DeviceAllocation.GRANULE_BYTES);
        byte[] handle = DeviceExport.of(driver, allocation.memory(0, DeviceAllocation.GRANULE_BYTES))
                .form()
                .legacyHandle();
        assertThat(handle).hasSize((int) CudaLayout.IPC_HANDLE_SIZE_BYTES);
        System.out.println(HexFormat.of().formatHex(handle));
        Thread.currentThread().join();
    }
}
