package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.spi.LinkEvents;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OpenWindow;
import io.kvmessenger.transfer.spi.OutboundLink;
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
                    (port, figures) -> List.of(new HoldingTransport())),
            () -> events++);

    @Test
    void shouldTellItsPollerOnceForWorkBetweenTwoDutyCycles() {
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
        Region region = invoked.engine().register(Arena.ofAuto().allocate(REGION_BYTES), Region.NOT_SHAREABLE);
        WindowArea area =
                WindowArea.of(region.descriptor(), WindowRanges.of(new long[] {0}, new long[] {REGION_BYTES}));
        return invoked.engine().openWindow(invoked.engine().admit("peer"), area, 1, 0);
    }

    private final class HoldingTransport implements Transport {
        @Override
        public String name() {
            return "holding";
        }

        @Override
        public String location() {
            return "";
        }

        @Override
        public OutboundLink connect(String location, byte[] key, MessageQueue messages, LinkEvents events, long nowNs) {
            throw new IllegalStateException("connects to nothing");
        }

        @Override
        public int doWork(long nowNs) {
            return 0;
        }

        @Override
        public void onWindowClosed(OpenWindow window) {
            if (letsGo) {
                window.endLanding();
            }
        }

        @Override
        public void close() {}
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
