package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferOptions;

/** The whole contract once more, with engines that have no thread of their own. */
final class VerbsCallerDrivenContractTest extends VerbsContractTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.THREADING, ThreadingMode.CALLER);
    }
}
