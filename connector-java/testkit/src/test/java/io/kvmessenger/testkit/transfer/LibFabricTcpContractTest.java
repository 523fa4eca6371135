package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.extension.ExtendWith;

@ExtendWith(NeedsLibFabric.class)
class LibFabricTcpContractTest extends TransportContractTest {
    @Override
    protected String transport() {
        return TransferOptions.LIBFABRIC;
    }

    @Override
    protected TransferOptions options() {
        return InstalledFabric.byTcp(super.options());
    }
}
