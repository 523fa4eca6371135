package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** The same with two workers that one thread runs. */
final class TcpCallerDrivenTwoWorkersContractTest extends TcpCallerDrivenContractTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.WORKERS, 2);
    }
}
