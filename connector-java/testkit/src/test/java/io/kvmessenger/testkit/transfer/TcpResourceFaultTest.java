package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

class TcpResourceFaultTest extends ResourceFaultContractTest {
    @Override
    protected String transport() {
        return TransferOptions.TCP;
    }
}
