package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferOptions;
import java.util.List;
import org.junit.jupiter.api.Test;

/** What {@link LostPathContractTest} says, with data sockets at two addresses, of which one may be dead. */
final class TcpTwoNetworksLostPathTest extends LostPathContractTest {
    /** Loopback has both everywhere. */
    private static final String FIRST = "127.0.0.1";

    private static final String SECOND = "127.0.0.2";

    static TransferOptions twoNetworks(TransferOptions options) {
        return options.with(TransferOptions.DATA_HOSTS, List.of(FIRST, SECOND));
    }

    @Override
    protected String transport() {
        return TransferOptions.TCP;
    }

    @Override
    protected TransferOptions options() {
        return twoNetworks(super.options());
    }

    /** One network is down for a second, and up for one. */
    @Override
    protected void disturb() {
        addBreaks(breaking().cut(SECOND));
    }

    @Override
    protected void calm() {
        breaking().join(SECOND);
    }

    @Test
    void shouldUseBothNetworks() {
        assertThat(breaking().countTowards(FIRST)).isEqualTo(1);
        assertThat(breaking().countTowards(SECOND)).isEqualTo(1);
    }

    @Test
    void shouldGoOnByTheOtherNetworkAndTakeTheLostOneBack() {
        boolean[] cut = {false};
        rounds(1, () -> {
            if (!cut[0]) {
                cut[0] = true;
                breaking().cut(SECOND);
            }
        });
        rounds(20, () -> {});
        assertThat(breaking().countTowards(SECOND)).isZero();
        assertNothingLost();
        assertThat(writer().engine().counters().of(TransferCounter.PATHS_LOST)).isEqualTo(1);
        breaking().join(SECOND);
        writer().await("the network to be taken back", () -> breaking().countTowards(SECOND) == 1);
        rounds(20, () -> {});
        assertNothingLost();
    }

    @Test
    void shouldBeReadyWhileANetworkIsDown() {
        breaking().cut(SECOND);
        reconnect(options());
        rounds(5, () -> {});
        assertThat(breaking().countTowards(SECOND)).isZero();
        assertNothingLost();
        breaking().join(SECOND);
        writer().await("the network to come up", () -> breaking().countTowards(SECOND) == 1);
        rounds(5, () -> {});
        assertNothingLost();
    }
}
