package io.kvmessenger.testkit.staging;

import io.kvmessenger.testkit.device.SlowCopies;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.TransportContractTest;
import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.extension.ExtendWith;

/** The contract over shm from a device's memory to a host's: what is gathered is written as if it were a host's. */
@ExtendWith(SlowCopies.class)
final class StagedShmFromDeviceTest extends TransportContractTest {
    @Override
    protected String transport() {
        return TransferOptions.SHM;
    }

    /** A device's memory is registered where something can write to it, which shm cannot. */
    @Override
    protected TransferOptions options() {
        return super.options().withTransports(TransferOptions.SHM, TransferOptions.TCP);
    }

    @Override
    protected DrivenEngine open(String name) {
        return name.equals("target") ? super.open(name) : StagedMemory.open(options(), MEMORY_BYTES);
    }
}
