package io.kvmessenger.testkit.transfer;

import io.kvmessenger.testkit.sim.SimulatedEngines;
import io.kvmessenger.transfer.TransferOptions;

final class SimulatedStagedContractTest extends CheckedTransportContractTest {
    private final SimulatedEngines engines = new SimulatedEngines("STAGED", 1);

    @Override
    protected String transport() {
        return SimulatedEngines.TRANSPORT;
    }

    @Override
    protected TransferOptions options() {
        return TransferOptions.defaults();
    }

    @Override
    protected DrivenEngine open(String name) {
        return new DrivenEngine(options(), name, MEMORY_BYTES, engines.open(options()));
    }
}
