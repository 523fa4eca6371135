package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.FakeDomain;
import io.kvmessenger.transfer.spi.FakeLinks;
import io.kvmessenger.transfer.spi.FakeTransport;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.OpenWindow;
import io.kvmessenger.transfer.spi.Poller;
import io.kvmessenger.transfer.spi.Transport;
import java.lang.foreign.Arena;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;

class InvokedEngineTest {
    private static final long REGION_BYTES = 64;

    private long nowNs;
    private int wakes;
    private int events;
    private boolean letsGo = true;
    private final InvokedEngine invoked = new InvokedEngine(
            EngineLimits.of(TransferOptions.defaults()),
            new EnginePorts(
                    new FfmLibC(),
                    () -> nowNs,
                    new Random(1),
                    new StillPoller(),
                    new FakeLinks(),
                    List.of(FakeTransport.unavailable("no card"), FakeTransport.of(new HoldingDomain()))),
            () -> events++);

    @Test
    void shouldNotifyItsPollerOnceForWorkBetweenTwoDutyCycles() {
        Admission admission = invoked.engine().admit("peer");
        invoked.engine().revoke(admission);
        invoked.engine().revoke(admission);
        assertThat(wakes).isEqualTo(1);
        assertThat(events).isZero();
        assertThat(invoked.doWork()).isPositive();
        assertThat(events).isEqualTo(1);
        invoked.engine().revoke(admission);
        assertThat(wakes).isEqualTo(2);
    }

    @Test
    void shouldOpenWithWhatTheMachineHasAndSayWhatItHasNot() {
        assertThat(invoked.engine().unavailable()).containsExactly("no card");
        assertThat(invoked.engine().address().transports())
                .containsExactly(new EngineAddress.TransportAddress("holding", ""));
    }

    @Test
    void shouldNotOpenWithoutAnyTransport() {
        List<Transport> none = List.of(FakeTransport.unavailable("no card"), FakeTransport.unavailable("no memory"));
        assertThatThrownBy(() -> Domains.open(none, null, new Figures()))
                .isInstanceOf(IllegalStateException.class)
                .hasMessage("no transport can be opened: no card; no memory");
    }

    @Test
    void shouldCloseWhatItHasOpenedWhenAnOptionIsWrong() {
        boolean[] wasClosed = new boolean[1];
        Domain first = new HoldingDomain() {
            @Override
            public void close() {
                wasClosed[0] = true;
            }
        };
        Transport wrong = new Transport() {
            @Override
            public String name() {
                return "wrong";
            }

            @Override
            public Domain open(InboundPort port, Figures figures) {
                throw new IllegalArgumentException("option data_port is taken");
            }
        };
        assertThatThrownBy(() -> Domains.open(List.of(FakeTransport.of(first), wrong), null, new Figures()))
                .hasMessage("option data_port is taken");
        assertThat(wasClosed[0]).isTrue();
    }

    @Test
    void shouldLetGoOfAClosedWindowWithinTheCall() {
        ImmWindow window = window();
        assertThat(((OpenWindow) window).beginLanding()).isTrue();
        window.close(true);
        assertThat(invoked.engine().counters().of(TransferCounter.WINDOWS_OPEN)).isZero();
    }

    @Test
    void shouldFailRatherThanWaitForATransportThatKeepsAWindow() {
        letsGo = false;
        ImmWindow window = window();
        assertThat(((OpenWindow) window).beginLanding()).isTrue();
        assertThatThrownBy(() -> window.close(true))
                .isInstanceOf(AssertionError.class)
                .hasMessageContaining("nothing to do");
    }

    private ImmWindow window() {
        Region region = invoked.engine().register(Memory.host(Arena.ofAuto().allocate(REGION_BYTES)));
        WindowArea area =
                WindowArea.of(region.descriptor(), WindowRanges.of(new long[] {0}, new long[] {REGION_BYTES}));
        return invoked.engine().openWindow(invoked.engine().admit("peer"), area, 1, 0);
    }

    private class HoldingDomain extends FakeDomain {
        HoldingDomain() {
            super("holding", 0);
        }

        @Override
        public void onWindowClosed(OpenWindow window) {
            if (letsGo) {
                window.endLanding();
            }
        }
    }

    private final class StillPoller implements Poller {
        @Override
        public long nowNs() {
            return nowNs;
        }

        @Override
        public long tick() {
            return nowNs;
        }

        @Override
        public int poll(int timeoutMillis) {
            assertThat(timeoutMillis).isZero();
            return 0;
        }

        @Override
        public void wake() {
            wakes++;
        }

        @Override
        public void close() {}
    }
}
