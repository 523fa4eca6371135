package io.kvmessenger.testkit.transfer;

import io.kvmessenger.foreign.FabricApi;
import io.kvmessenger.foreign.FfmLibFabric;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.libfabric.LibFabricTransport;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Assumptions;

/** The libfabric that the build has unpacked, for tests. Pure functions. */
public final class InstalledFabric {
    private InstalledFabric() {}

    /** Skips the test if there is none. */
    public static void assume() {
        try {
            new FfmLibFabric(FfmLibFabric.DEFAULT_NAME);
        } catch (UnsatisfiedLinkError e) {
            Assumptions.abort(e.getMessage() + ": -Dkvmessenger.libfabric names no folder of it,"
                    + " examples/setup/find-libfabric does");
        }
    }

    /** The library's file; skips the test if only the loader knows it. */
    static Path file() {
        Path file = Path.of(System.getProperty("kvmessenger.libfabric", ""), "lib", FfmLibFabric.DEFAULT_NAME);
        Assumptions.assumeTrue(
                Files.exists(file),
                "-Dkvmessenger.libfabric names no folder of it, examples/setup/find-libfabric does");
        return file;
    }

    /** Restricts the options to libfabric over tcp. */
    public static TransferOptions byTcp(TransferOptions options) {
        boolean renamed = new FfmLibFabric(FfmLibFabric.DEFAULT_NAME).fi_version() > FabricApi.VERSION;
        return options.withTransports(TransferOptions.LIBFABRIC)
                .with(LibFabricTransport.PROVIDER, renamed ? "tcp" : "net");
    }
}
