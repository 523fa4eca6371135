package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.ThreadingMode;

/** Scarcity met by engines that have no thread of their own. */
final class ShmCallerDrivenResourceFaultTest extends ShmResourceFaultTest {
    @Override
    protected ThreadingMode threading() {
        return ThreadingMode.CALLER;
    }
}
