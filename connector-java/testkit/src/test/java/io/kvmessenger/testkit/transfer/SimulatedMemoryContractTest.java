package io.kvmessenger.testkit.transfer;

import io.kvmessenger.testkit.sim.SimulatedEngines;
import io.kvmessenger.transfer.TransferOptions;

class SimulatedMemoryContractTest extends TransportContractTest {
    private final SimulatedEngines engines = new SimulatedEngines("SHARED_MEMORY", 1);

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
