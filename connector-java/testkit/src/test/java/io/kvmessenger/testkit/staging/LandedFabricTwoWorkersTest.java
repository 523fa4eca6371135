package io.kvmessenger.testkit.staging;

import io.kvmessenger.transfer.TransferOptions;

/** The whole contract once more, with two workers to each engine, which have slabs of their own. */
final class LandedFabricTwoWorkersTest extends LandedFabricContractTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.WORKERS, 2);
    }
}
