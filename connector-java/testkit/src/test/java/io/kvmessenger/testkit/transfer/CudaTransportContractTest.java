package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** Device memory of the stand-in for NVIDIA's driver, whose copies are late. */
class CudaTransportContractTest extends TransportContractTest {
    @Override
    protected String transport() {
        return TransferOptions.CUDA;
    }
}
