package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.engine.TransferEngines;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A write longer than the provider's longest message ended the peer. */
@Timeout(900)
final class LibFabricLongestPageTest {
    private final FaultyProvider provider = new FaultyProvider(1);

    private DrivenEngine open(String name) {
        TransferOptions options =
                TransferOptions.defaults().withTransports(TransferOptions.LIBFABRIC, TransferOptions.TCP);
        return new DrivenEngine(
                options,
                name,
                LongestPage.memoryBytes(FaultyProvider.WRITE_MAX_BYTES),
                TransferEngines.open(options, new FfmLibC(), provider::library));
    }

    @Test
    void shouldMoveUpToTheLongestMessageOfTheProvider() {
        try (DrivenEngine owner = open("owner");
                DrivenEngine other = open("other")) {
            LongestPage.check(owner, other, TransferOptions.LIBFABRIC, FaultyProvider.WRITE_MAX_BYTES);
        }
        assertThat(provider.violations()).isEmpty();
    }
}
