package io.kvmessenger.testkit.staging;

import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.InstalledFabric;
import io.kvmessenger.testkit.transfer.TransportContractTest;
import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;

/** The contract over libfabric from a device's memory to a host's: what is gathered is registered with the NIC, and written as a host's. */
final class StagedFabricContractTest extends TransportContractTest {
    @BeforeAll
    static void look() {
        InstalledFabric.assume();
    }

    @Override
    protected String transport() {
        return TransferOptions.LIBFABRIC;
    }

    @Override
    protected TransferOptions options() {
        return StagedMemory.byLibFabric(super.options());
    }

    @Override
    protected DrivenEngine open(String name) {
        return StagedMemory.openFromDevice(name, options(), MEMORY_BYTES);
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
