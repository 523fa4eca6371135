package io.kvmessenger.testkit.staging;

import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.RdmaDevices;
import io.kvmessenger.testkit.transfer.TransportContractTest;
import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;

/** The contract over verbs from a device's memory to a host's: what is gathered is registered with the NIC, and written as a host's. */
final class VerbsFromDeviceContractTest extends TransportContractTest {
    @BeforeAll
    static void look() {
        RdmaDevices.assume();
    }

    @Override
    protected String transport() {
        return TransferOptions.VERBS;
    }

    /** A device's memory is registered where something can write to it, which verbs cannot. */
    @Override
    protected DrivenEngine open(String name) {
        TransferOptions options =
                RdmaDevices.by(options(), name).withTransports(TransferOptions.VERBS, TransferOptions.TCP);
        return StagedMemory.openFromDevice(name, options, MEMORY_BYTES);
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
