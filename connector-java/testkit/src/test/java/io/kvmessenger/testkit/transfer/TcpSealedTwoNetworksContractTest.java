package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** The whole contract once more, with sealed data sockets at two addresses. */
final class TcpSealedTwoNetworksContractTest extends TcpSealedContractTest {
    @Override
    protected TransferOptions options() {
        return TcpTwoNetworksLostPathTest.twoNetworks(super.options());
    }
}
