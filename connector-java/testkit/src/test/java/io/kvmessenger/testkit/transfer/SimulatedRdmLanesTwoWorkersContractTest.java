package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.TransferOptions;

/** The same with two workers to each engine, which run their duty cycles in the order of the simulated clock. */
final class SimulatedRdmLanesTwoWorkersContractTest extends SimulatedRdmLanesContractTest {
    @Override
    protected TransferOptions options() {
        return super.options().with(TransferOptions.WORKERS, 2);
    }
}
