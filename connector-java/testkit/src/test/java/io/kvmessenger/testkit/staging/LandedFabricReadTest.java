package io.kvmessenger.testkit.staging;

import io.kvmessenger.testkit.device.SlowCopies;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.InstalledFabric;
import io.kvmessenger.testkit.transfer.NeedsLibFabric;
import io.kvmessenger.testkit.transfer.ReadContractTest;
import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.extension.ExtendWith;

/** Reads over libfabric from a device's memory into a device's. */
@ExtendWith(NeedsLibFabric.class)
@ExtendWith(SlowCopies.class)
final class LandedFabricReadTest extends ReadContractTest {
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
}
