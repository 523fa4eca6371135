package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** The whole contract once more, with sealed sockets and two workers to each engine. */
final class TcpSealedTwoWorkersContractTest extends TcpSealedContractTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.WORKERS, 2);
    }
}
