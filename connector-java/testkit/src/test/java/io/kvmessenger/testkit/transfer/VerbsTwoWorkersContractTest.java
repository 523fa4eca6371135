package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** The whole contract once more, with two workers to each engine. */
final class VerbsTwoWorkersContractTest extends VerbsContractTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.WORKERS, 2);
    }
}
