package io.kvmessenger.testkit.staging;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.testkit.device.SlowCopies;
import io.kvmessenger.testkit.transfer.CheckedTransportContractTest;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.InstalledFabric;
import io.kvmessenger.testkit.transfer.NeedsLibFabric;
import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;

/** The whole contract over libfabric alone, from a device's memory to a device's: by frames in slabs, with copies that are slow. */
@ExtendWith(NeedsLibFabric.class)
@ExtendWith(SlowCopies.class)
class LandedFabricContractTest extends CheckedTransportContractTest {
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
        return isOnDevice(name) ? StagedMemory.open(options(), MEMORY_BYTES) : super.open(name);
    }

    /** @param name of the engine: writer, target, or another writer */
    protected boolean isOnDevice(String name) {
        return true;
    }

    @Test
    void shouldNameHowItReachesTheDeviceAndWhy() {
        assertThat(target.engine().notes())
                .singleElement()
                .asString()
                .matches(
                        "libfabric reaches device [01] staged, through \\d page-locked slabs for each peer: its provider"
                                + " \\w+ is given no device memory \\(FI_HMEM\\); landing_slabs set to 0 ends it");
    }
}
