package io.kvmessenger.testkit.transfer;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.socket.SocketCalls;

final class CudaHostilePeerTest extends HostilePeerContractTest {
    private static final SocketCalls SOCKETS = new SocketCalls(new FfmLibC());

    @Override
    protected String transport() {
        return TransferOptions.CUDA;
    }

    @Override
    protected int connectSocket(String location) {
        return SOCKETS.connectAbstract(location);
    }
}
