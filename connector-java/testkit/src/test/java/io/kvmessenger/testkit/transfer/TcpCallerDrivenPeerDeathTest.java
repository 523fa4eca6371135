package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferOptions;

/** A peer's death seen by an engine that has no thread of its own. */
final class TcpCallerDrivenPeerDeathTest extends TcpPeerDeathTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.THREADING, ThreadingMode.CALLER);
    }
}
