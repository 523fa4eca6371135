package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.Driver;

/** Scarcity met by engines that have no thread of their own. */
final class ShmCallerDrivenResourceFaultTest extends ShmResourceFaultTest {
    @Override
    protected Driver driver() {
        return Driver.CALLER;
    }
}
