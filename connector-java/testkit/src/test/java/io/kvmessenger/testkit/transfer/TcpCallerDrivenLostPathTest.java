package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferOptions;

/** The same by an engine that has no thread of its own. */
final class TcpCallerDrivenLostPathTest extends TcpLostPathTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.THREADING, ThreadingMode.CALLER);
    }
}
