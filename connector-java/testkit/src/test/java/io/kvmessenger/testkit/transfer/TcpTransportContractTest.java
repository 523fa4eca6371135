package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

class TcpTransportContractTest extends CheckedTransportContractTest {
    @Override
    protected String transport() {
        return TransferOptions.TCP;
    }
}
