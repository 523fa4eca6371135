package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** The whole contract once more, with data sockets at two addresses. */
final class TcpTwoNetworksContractTest extends TcpTransportContractTest {
    @Override
    protected TransferOptions options() {
        return TcpTwoNetworksLostPathTest.twoNetworks(super.options());
    }
}
