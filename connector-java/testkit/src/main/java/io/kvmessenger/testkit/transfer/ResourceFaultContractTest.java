package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferOptions;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Requirements on an engine when the operating system is out of resources: one peer is lost, not the worker. */
@Timeout(900)
public abstract class ResourceFaultContractTest {
    private static final String FEW_DESCRIPTORS = "ulimit -n 256";
    /** In units of 512 or 1,024 bytes, depending on the shell: in both cases less than a ring of immediates. */
    private static final String SMALL_FILES = "ulimit -f 32";

    protected abstract String transport();

    protected ThreadingMode threading() {
        return ThreadingMode.OWN_THREAD;
    }

    @Test
    void shouldLoseOnlyThePeerThatTheLastDescriptorWasRefused() throws IOException, InterruptedException {
        run(FEW_DESCRIPTORS, ScarceProcess.CONNECTING, transport());
    }

    @Test
    void shouldNotTryARefusedAcceptInEveryDutyCycle() throws IOException, InterruptedException {
        run(FEW_DESCRIPTORS, ScarceProcess.ACCEPTING, transport());
    }

    @Test
    void shouldLeaveNothingBehindWhenItCannotOpen() throws IOException, InterruptedException {
        run(FEW_DESCRIPTORS, ScarceProcess.OPENING, transport());
    }

    @Test
    void shouldReachAPeerByTcpWhereMemoryIsRefused() throws IOException, InterruptedException {
        run(SMALL_FILES, ScarceProcess.FALLING_BACK, TransferOptions.SHM + "," + TransferOptions.TCP);
    }

    private void run(String limit, String what, String transports) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of("sh", "-c", limit + " && exec \"$@\"", "sh"));
        command.addAll(ChildJvm.command(
                ScarceProcess.class, what, transports, threading().name()));
        Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
        process.getOutputStream().close();
        try {
            String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            assertThat(process.waitFor()).as("%s: %s", what, output).isZero();
            assertThat(output).endsWith("done\n");
        } finally {
            process.destroyForcibly();
        }
    }
}
