package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

class ShmPeerDeathTest extends PeerDeathContractTest {
    @Override
    protected String transport() {
        return TransferOptions.SHM;
    }
}
