package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.ThreadingMode;

/** Scarcity met by engines that have no thread of their own. */
final class TcpCallerDrivenResourceFaultTest extends TcpResourceFaultTest {
    @Override
    protected ThreadingMode threading() {
        return ThreadingMode.CALLER;
    }
}
