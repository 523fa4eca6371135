package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** What {@link LostPathContractTest} says, over tcp. */
class TcpLostPathTest extends LostPathContractTest {
    @Override
    protected String transport() {
        return TransferOptions.TCP;
    }
}
