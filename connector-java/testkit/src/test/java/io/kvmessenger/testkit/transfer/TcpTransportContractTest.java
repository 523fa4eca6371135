package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

class TcpTransportContractTest extends TransportContractTest {
    @Override
    protected String transport() {
        return TransferOptions.TCP;
    }

    @Override
    protected boolean targetChecksWrites() {
        return true;
    }
}
