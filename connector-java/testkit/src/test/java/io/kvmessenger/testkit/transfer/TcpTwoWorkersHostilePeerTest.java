package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** The same against an engine with two workers. */
final class TcpTwoWorkersHostilePeerTest extends TcpHostilePeerTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.WORKERS, 2);
    }
}
