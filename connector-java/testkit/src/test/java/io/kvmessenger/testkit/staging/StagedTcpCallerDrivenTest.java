package io.kvmessenger.testkit.staging;

import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;

/** The same with engines that have no thread of their own, over sealed sockets. */
final class StagedTcpCallerDrivenTest extends StagedTcpContractTest {
    @Override
    protected TransferOptions options() {
        return super.options()
                .with(TransferOptions.THREADING, ThreadingMode.CALLER)
                .with(TransferOptions.SEAL_TCP, true);
    }

    /** The target's word is not sealed with a key that it does not have. */
    @Override
    protected TransferFault faultOfAWrongKey() {
        return TransferFault.PEER_CLOSED;
    }
}
