package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** The same with two workers to each engine, so that members are spread over them. */
final class TcpTwoWorkersGroupTest extends TcpGroupTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.WORKERS, 2);
    }
}
