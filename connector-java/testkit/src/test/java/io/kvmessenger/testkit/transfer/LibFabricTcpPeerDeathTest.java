package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.extension.ExtendWith;

@ExtendWith(NeedsLibFabric.class)
final class LibFabricTcpPeerDeathTest extends PeerDeathContractTest {
    @Override
    protected String transport() {
        return TransferOptions.LIBFABRIC;
    }

    @Override
    protected TransferOptions options() {
        return InstalledFabric.byTcp(super.options());
    }
}
