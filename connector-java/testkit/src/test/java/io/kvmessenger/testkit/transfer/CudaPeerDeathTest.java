package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** Device memory of the stand-in for NVIDIA's driver, whose copies are late. */
final class CudaPeerDeathTest extends PeerDeathContractTest {
    @Override
    protected String transport() {
        return TransferOptions.CUDA;
    }
}
