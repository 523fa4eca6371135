package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

class TcpEchoTest extends EchoContractTest {
    @Override
    protected String transport() {
        return TransferOptions.TCP;
    }

    @Override
    protected DrivenEngine open(String name, long memoryBytes) {
        return new DrivenEngine(options(), name, memoryBytes);
    }
}
