package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.engine.TransferEngines;
import org.junit.jupiter.api.AfterEach;

/** The whole contract over a provider that delivers in any order and asks for all that a NIC may ask for: none is installed for it. */
class LibFabricUnorderedContractTest extends TransportContractTest {
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
                options, name, MEMORY_BYTES, TransferEngines.open(options, new FfmLibC(), provider::library));
    }

    @Override
    @AfterEach
    void close() {
        super.close();
        assertThat(provider.violations()).as("seed %d", seed).isEmpty();
        assertThat(provider.held()).as("seed %d", seed).isEmpty();
    }
}
