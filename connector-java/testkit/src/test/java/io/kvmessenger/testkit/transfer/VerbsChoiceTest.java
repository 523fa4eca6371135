package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.engine.TransferEngines;
import io.kvmessenger.transfer.verbs.VerbsTransport;
import java.util.List;
import org.junit.jupiter.api.Test;

/** When verbs is a transport of an engine, and what is said when it is not: with devices and without. */
final class VerbsChoiceTest {
    private static TransferOptions byDeviceThatNothingHas() {
        return TransferOptions.defaults()
                .withTransports(TransferOptions.VERBS)
                .with(VerbsTransport.DEVICES, List.of("nic-that-nothing-has"));
    }

    private static void assertRefused(TransferOptions options, String... words) {
        assertThatThrownBy(() -> TransferEngines.open(options))
                .isInstanceOf(IllegalStateException.class)
                .hasMessageContainingAll(words)
                .hasMessageNotContaining("\n");
    }

    @Test
    void shouldSayInOneLineThatThereIsNoSuchDevice() {
        assertRefused(byDeviceThatNothingHas(), "libibverbs");
    }

    @Test
    void shouldGoOnWithoutIt() {
        TransferOptions both = byDeviceThatNothingHas().withTransports(TransferOptions.VERBS, TransferOptions.TCP);
        try (TransferEngine engine = TransferEngines.open(both)) {
            assertThat(engine.address().transports())
                    .singleElement()
                    .satisfies(only -> assertThat(only.transport()).isEqualTo(TransferOptions.TCP));
        }
    }

    @Test
    void shouldNotMoveInClearWhatIsToBeEncrypted() {
        assertRefused(
                byDeviceThatNothingHas().with(TransferOptions.SEAL_TCP, true), "verbs cannot encrypt", "tcp_in_clear");
    }
}
