package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

class ShmEchoTest extends EchoContractTest {
    @Override
    protected String transport() {
        return TransferOptions.SHM;
    }

    @Override
    protected DrivenEngine open(String name, long memoryBytes) {
        return new DrivenEngine(options(), name, memoryBytes);
    }
}
