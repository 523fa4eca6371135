package io.kvmessenger.testkit.staging;

import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.transfer.CheckedTransportContractTest;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** The whole contract over tcp from a device's memory to a device's, with copies that are slow. */
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

    @BeforeEach
    void slowDown() {
        StandInCuda.load().delay(StagedMemory.DELAY_NS);
    }

    @AfterEach
    void speedUp() {
        StandInCuda.load().delay(0);
    }
}
