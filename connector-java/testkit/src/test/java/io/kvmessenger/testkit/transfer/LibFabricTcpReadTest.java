package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.BeforeAll;

final class LibFabricTcpReadTest extends ReadContractTest {
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
