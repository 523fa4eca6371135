package io.kvmessenger.testkit.transfer;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.socket.SocketCalls;

final class ShmHostilePeerTest extends HostilePeerContractTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);

    @Override
    protected String transport() {
        return TransferOptions.SHM;
    }

    @Override
    protected int connectSocket(String location) {
        return SOCKETS.connectAbstract(location);
    }
}
