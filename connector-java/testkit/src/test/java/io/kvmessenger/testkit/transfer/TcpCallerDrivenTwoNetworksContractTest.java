package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** The same by engines that have no thread of their own, and two workers to one thread. */
final class TcpCallerDrivenTwoNetworksContractTest extends TcpCallerDrivenContractTest {
    @Override
    protected TransferOptions options() {
        return TcpTwoNetworksLostPathTest.twoNetworks(super.options()).with(TransferOptions.WORKERS, 2);
    }
}
