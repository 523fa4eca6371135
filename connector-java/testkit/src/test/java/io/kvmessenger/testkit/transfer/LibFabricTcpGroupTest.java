package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.BeforeAll;

final class LibFabricTcpGroupTest extends GroupContractTest {
    @BeforeAll
    static void look() {
        InstalledFabric.assume();
    }

    @Override
    protected String transport() {
        return TransferOptions.LIBFABRIC;
    }

    @Override
    protected TransferOptions options() {
        return InstalledFabric.byTcp(super.options());
    }
}
