package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

class TcpPeerDeathTest extends PeerDeathContractTest {
    @Override
    protected String transport() {
        return TransferOptions.TCP;
    }
}
