package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

class ShmResourceFaultTest extends ResourceFaultContractTest {
    @Override
    protected String transport() {
        return TransferOptions.SHM;
    }
}
