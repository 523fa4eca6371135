package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.testkit.device.SlowCopies;
import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.device.StandInMemories;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.device.DriverAccess;
import io.kvmessenger.transfer.engine.TransferEngines;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.extension.ExtendWith;

/**
 * The whole contract from a device's memory to a device's over a provider that delivers in any order, and checks that
 * each byte it reads or writes is registered.
 */
@ExtendWith(SlowCopies.class)
final class LandedFabricUnorderedContractTest extends CheckedTransportContractTest {
    private final long seed = Long.getLong("kvmessenger.test.seed", System.nanoTime());
    private final FaultyProvider provider = new FaultyProvider(seed);

    @Override
    protected String transport() {
        return TransferOptions.LIBFABRIC;
    }

    @Override
    protected DrivenEngine open(String name) {
        TransferOptions options = options();
        return new DrivenEngine(
                options,
                new StandInMemories().allocate(MEMORY_BYTES),
                TransferEngines.open(
                        options, new FfmLibC(), provider::library, new DriverAccess(StandInCuda.library())));
    }

    /** After the engines are closed: nothing stays registered or open at the provider. */
    @Override
    @AfterEach
    void close() {
        super.close();
        assertThat(provider.violations()).as("seed %d", seed).isEmpty();
        assertThat(provider.held()).as("seed %d", seed).isEmpty();
    }
}
