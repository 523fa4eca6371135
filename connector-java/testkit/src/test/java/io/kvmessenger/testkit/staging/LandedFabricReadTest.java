package io.kvmessenger.testkit.staging;

import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.InstalledFabric;
import io.kvmessenger.testkit.transfer.ReadContractTest;
import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;

/** Reads over libfabric from a device's memory into a device's. */
final class LandedFabricReadTest extends ReadContractTest {
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
        return InstalledFabric.byTcp(super.options());
    }

    @Override
    protected DrivenEngine open(String name) {
        return StagedMemory.open(options(), MEMORY_BYTES);
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
