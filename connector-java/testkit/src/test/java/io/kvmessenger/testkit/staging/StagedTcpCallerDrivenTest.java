package io.kvmessenger.testkit.staging;

import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import java.util.List;

/** The same with engines that have no thread of their own, over sealed sockets. */
final class StagedTcpCallerDrivenTest extends StagedTcpContractTest {
    @Override
    protected TransferOptions options() {
        return super.options()
                .with(TransferOptions.THREADING, ThreadingMode.CALLER)
                .with(TransferOptions.SEAL_TCP, true);
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
