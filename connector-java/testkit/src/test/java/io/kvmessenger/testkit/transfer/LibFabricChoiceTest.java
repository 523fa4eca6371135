package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.engine.TransferEngines;
import io.kvmessenger.transfer.libfabric.LibFabricTransport;
import java.util.List;
import org.junit.jupiter.api.Test;

/** When libfabric is a transport of an engine, and what is said when it is not. */
final class LibFabricChoiceTest {
    private static final String MISSING = "libfabric-that-nothing-has.so.1";

    private static TransferOptions by(String library, String provider) {
        return TransferOptions.defaults()
                .withTransports(TransferOptions.LIBFABRIC)
                .with(LibFabricTransport.LIBRARY, library)
                .with(LibFabricTransport.PROVIDER, provider);
    }

    private static void assertRefused(TransferOptions options, String... words) {
        assertThatThrownBy(() -> TransferEngines.open(options))
                .isInstanceOf(IllegalStateException.class)
                .hasMessageContainingAll(words)
                .hasMessageNotContaining("\n");
    }

    @Test
    void shouldSayThatThereIsNoLibrary() {
        assertRefused(by(MISSING, ""), "libfabric cannot be loaded", MISSING);
    }

    @Test
    void shouldGoOnWithoutIt() {
        TransferOptions both = by(MISSING, "").withTransports(TransferOptions.LIBFABRIC, TransferOptions.TCP);
        try (TransferEngine engine = TransferEngines.open(both)) {
            assertThat(engine.address().transports())
                    .singleElement()
                    .satisfies(only -> assertThat(only.transport()).isEqualTo(TransferOptions.TCP));
        }
    }

    @Test
    void shouldNotMoveInClearWhatIsToBeEncrypted() {
        assertRefused(by("", "").with(TransferOptions.SEAL_TCP, true), "libfabric cannot encrypt", "tcp_in_clear");
    }

    @Test
    void shouldNameTheProviderThatItDoesNotHave() {
        InstalledFabric.assume();
        assertRefused(by("", "carrier-pigeon"), "offers no provider carrier-pigeon");
    }

    /** Each ended the process, or stopped its worker for ever, where a peer went at the wrong moment. */
    @Test
    void shouldUseNoProviderThatDoesNotOutliveItsPeer() {
        InstalledFabric.assume();
        assertRefused(by("", "shm"), "provider shm", "where a peer is killed", "say shm");
        assertRefused(by("", "verbs;ofi_rxm"), "provider verbs;ofi_rxm", "ends the process", "say verbs");
        assertRefused(by("", "tcp;ofi_rxm"), "provider tcp;ofi_rxm", "ends the process", "net");
    }

    @Test
    void shouldBeUsedWhereItIsTheFirstThatBothHave() {
        InstalledFabric.assume();
        TransferOptions options = InstalledFabric.byTcp(TransferOptions.defaults());
        for (List<String> names : List.of(List.of("libfabric", "tcp"), List.of("tcp", "libfabric"))) {
            try (DrivenEngine writer =
                            new DrivenEngine(options.withTransports(names.toArray(String[]::new)), "writer", 1 << 16);
                    DrivenEngine target =
                            new DrivenEngine(options.withTransports("tcp", "libfabric"), "target", 1 << 16)) {
                var admission = target.engine().admit("writer");
                var peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
                writer.await("the peer", () -> writer.ready.contains(peer));
                assertThat(peer.transport()).isEqualTo(names.getFirst());
            }
        }
    }
}
