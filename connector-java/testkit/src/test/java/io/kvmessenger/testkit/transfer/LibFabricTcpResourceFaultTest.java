package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.BeforeAll;

/** What {@link ResourceFaultContractTest} says, over libfabric's tcp. */
final class LibFabricTcpResourceFaultTest extends ResourceFaultContractTest {
    @BeforeAll
    static void look() {
        InstalledFabric.assume();
    }

    @Override
    protected String transport() {
        return TransferOptions.LIBFABRIC;
    }
}
