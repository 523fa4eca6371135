package io.kvmessenger.testkit.staging;

import io.kvmessenger.testkit.device.SlowCopies;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.NeedsLibFabric;
import io.kvmessenger.testkit.transfer.TransportContractTest;
import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.extension.ExtendWith;

/** The contract over libfabric from a device's memory to a host's: what is gathered is registered with the NIC, and written as a host's. */
@ExtendWith(NeedsLibFabric.class)
@ExtendWith(SlowCopies.class)
final class StagedFabricContractTest extends TransportContractTest {
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
}
