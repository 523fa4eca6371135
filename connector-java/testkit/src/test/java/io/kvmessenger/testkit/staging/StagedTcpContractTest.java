package io.kvmessenger.testkit.staging;

import io.kvmessenger.testkit.device.SlowCopies;
import io.kvmessenger.testkit.transfer.CheckedTransportContractTest;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.extension.ExtendWith;

/** The whole contract over tcp from a device's memory to a device's, with copies that are slow. */
@ExtendWith(SlowCopies.class)
class StagedTcpContractTest extends CheckedTransportContractTest {
    @Override
    protected String transport() {
        return TransferOptions.TCP;
    }

    @Override
    protected DrivenEngine open(String name) {
        return isOnDevice(name) ? StagedMemory.open(options(), MEMORY_BYTES) : super.open(name);
    }

    /** @param name of the engine: writer, target, or another writer */
    protected boolean isOnDevice(String name) {
        return true;
    }
}
