package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.socket.SocketCalls;

final class ShmHostilePeerTest extends HostilePeerContractTest {
    @Override
    protected String transport() {
        return TransferOptions.SHM;
    }

    @Override
    protected int connectSocket(String location) {
        return SocketCalls.connectAbstract(location);
    }
}
