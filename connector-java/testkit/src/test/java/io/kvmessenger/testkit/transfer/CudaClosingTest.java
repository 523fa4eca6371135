package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.stream.Stream;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * A writer whose driver refuses one call while it lets go of its peer's memory, as after a fault of the engine's own
 * kernels. It reports all the same that nothing is written any more, or the peer would wait for its end.
 */
@Timeout(900)
final class CudaClosingTest extends WriterAndTarget {
    private static final int ILLEGAL_ADDRESS = 700;

    private long lastCookie;

    @Override
    protected String transport() {
        return TransferOptions.CUDA;
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "cuCtxPushCurrent_v2",
                "cuEventDestroy_v2",
                "cuMemAddressFree",
                "cuMemUnmap",
                "cuStreamDestroy_v2",
                "cuStreamSynchronize"
            })
    void shouldReportThatNothingIsWrittenAnyMore(String function) throws IOException, InterruptedException {
        Process child = new ProcessBuilder(ChildJvm.command(CudaClosingTest.class, StandInCuda.library(), function))
                .inheritIO()
                .start();
        assertThat(child.waitFor()).isZero();
    }

    /** A process of its own, since the driver keeps what it refuses to give back. */
    public static void main(String[] arguments) {
        int status = 1;
        try {
            CudaClosingTest test = new CudaClosingTest();
            test.connect();
            test.refuseEachCall(arguments[1]);
            test.close();
            status = 0;
        } catch (IOException | RuntimeException | Error error) {
            error.printStackTrace(System.err);
        } finally {
            System.exit(status);
        }
    }

    private void refuseEachCall(String function) throws IOException {
        StandInCuda standIn = StandInCuda.load();
        try (HostMemory rows = HostMemory.allocate("closing rows", MEMORY_BYTES)) {
            Region toRows = target.engine().register(rows.shared());
            writeTo(toRows);
            long before = standIn.callCount(function);
            leave();
            long calls = standIn.callCount(function) - before;
            assertThat(calls).isPositive();
            for (long nth = 1; nth <= calls; nth++) {
                admission = target.engine().admit("writer");
                peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
                writer.await("the next peer", () -> writer.ready.contains(peer));
                writeTo(toRows);
                standIn.fail(function, nth, ILLEGAL_ADDRESS);
                leave();
            }
            target.engine().close();
        }
    }

    private void leave() throws IOException {
        writer.engine().disconnect(peer);
        DrivenEngine.awaitBoth(
                "the end of the admission", target, writer, () -> target.closedAdmissions.containsKey(admission.id()));
        assertThat(mappingsOf("kvm-imm-ring")).isZero();
        assertThat(mappingsOf("closing rows")).as("the owner's own").isEqualTo(1);
    }

    /** How many this process has of files of that name; those of engines that are closed are gone. */
    private static long mappingsOf(String name) throws IOException {
        try (Stream<String> lines = Files.lines(Path.of("/proc/self/maps"))) {
            return lines.filter(line -> line.contains(name)).count();
        }
    }

    /** To memory of a device, and to a file. */
    private void writeTo(Region rows) {
        write(target.region(), ++lastCookie);
        write(rows, ++lastCookie);
    }

    private void write(Region to, long cookie) {
        WindowArea area = WindowArea.of(to.descriptor(), WindowRanges.ofEqual(new long[] {0}, PAGE_BYTES));
        ImmWindow window = target.engine().openWindow(admission, area, 1, cookie);
        RemoteWindow remote = writer.engine().allow(peer, window.imm(), area);
        writer.submit(peer, new SingleWrite(writer.region(), 0, to.descriptor(), 0, PAGE_BYTES, remote, 1), cookie);
        DrivenEngine.awaitBoth("the window", target, writer, () -> target.filled.contains(cookie));
        DrivenEngine.awaitBoth("its completion", writer, target, () -> writer.completed.contains(cookie));
    }
}
