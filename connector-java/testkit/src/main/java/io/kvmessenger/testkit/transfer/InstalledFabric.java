package io.kvmessenger.testkit.transfer;

import io.kvmessenger.foreign.FabricApi;
import io.kvmessenger.foreign.FfmLibFabric;
import io.kvmessenger.transfer.FabricChoice;
import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.Assumptions;

/** The libfabric that the build has unpacked, for tests. Pure functions. */
public final class InstalledFabric {
    private InstalledFabric() {}

    /** Skips the test where there is none. */
    public static void assume() {
        try {
            new FfmLibFabric(FfmLibFabric.DEFAULT_NAME);
        } catch (UnsatisfiedLinkError e) {
            Assumptions.abort(e.getMessage() + ": -Dkvmessenger.libfabric names no folder of it,"
                    + " examples/setup/find-libfabric does");
        }
    }

    /** The same by libfabric over tcp, and nothing else. */
    public static TransferOptions byTcp(TransferOptions options) {
        boolean renamed = new FfmLibFabric(FfmLibFabric.DEFAULT_NAME).fi_version() > FabricApi.VERSION;
        return options.withTransports(TransferOptions.LIBFABRIC)
                .withFabric(new FabricChoice("", renamed ? "tcp" : "net"));
    }
}
