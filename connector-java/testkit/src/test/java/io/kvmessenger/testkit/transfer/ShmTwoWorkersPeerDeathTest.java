package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** The same with two workers to each engine. */
final class ShmTwoWorkersPeerDeathTest extends ShmPeerDeathTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.WORKERS, 2);
    }
}
