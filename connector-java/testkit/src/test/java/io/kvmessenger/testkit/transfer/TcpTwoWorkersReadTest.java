package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** The same with two workers to each engine: each link and its answers are one worker's. */
final class TcpTwoWorkersReadTest extends TcpReadTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.WORKERS, 2);
    }
}
