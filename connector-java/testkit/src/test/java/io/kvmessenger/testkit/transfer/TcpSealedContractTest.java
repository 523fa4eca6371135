package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;

/** The whole contract once more, with tcp sockets that are sealed. */
class TcpSealedContractTest extends TcpTransportContractTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.SEAL_TCP, true);
    }

    /** The target's word is not sealed with a key that it does not have. */
    @Override
    protected TransferFault faultOfAWrongKey() {
        return TransferFault.PEER_CLOSED;
    }
}
