package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import java.util.List;

/** The whole contract once more, with tcp sockets that are sealed. */
class TcpSealedContractTest extends TcpTransportContractTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.SEAL_TCP, true);
    }

    /**
     * The target has no key to seal a reason with, and hangs up. The writer dials again while its time lasts, which may
     * end between two attempts or in one.
     */
    @Override
    protected List<TransferFault> faultsOfAWrongKey() {
        return List.of(TransferFault.PEER_CLOSED, TransferFault.UNREACHABLE);
    }
}
