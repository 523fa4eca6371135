package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

class ShmTransportContractTest extends TransportContractTest {
    @Override
    protected String transport() {
        return TransferOptions.SHM;
    }
}
