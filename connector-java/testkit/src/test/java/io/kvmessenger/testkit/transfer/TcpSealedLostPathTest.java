package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** What {@link LostPathContractTest} says, over sealed tcp. */
final class TcpSealedLostPathTest extends TcpLostPathTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.SEAL_TCP, true);
    }
}
