package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferOptions;

/** The same by engines that have no thread of their own. */
final class ShmCallerDrivenReadTest extends ShmReadTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.THREADING, ThreadingMode.CALLER);
    }
}
