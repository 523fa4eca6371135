package io.kvmessenger.weights;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.google.protobuf.ByteString;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.TransferEngine;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.reflect.Proxy;
import java.util.EnumSet;
import org.junit.jupiter.api.Test;

/** A landing is applied only when all of it is there and right, and is used again only after proof. */
class LandingTest {
    private static final long LENGTH_BYTES = 3 * LandingParts.PRODUCTION.writeBytes() - 5;

    private final MemorySegment bytes = Arena.ofAuto().allocate(LENGTH_BYTES);
    private final Window window = new Window();
    private final Landing landing = new Landing(new LandedRegion(bytes), LandingParts.PRODUCTION, engine());

    /** A window whose arrivals the test sets. */
    private static final class Window implements ImmWindow {
        long arrived;
        boolean closed;

        @Override
        public int imm() {
            return 77;
        }

        @Override
        public long arrivedWeight() {
            return arrived;
        }

        @Override
        public long expectedWeight() {
            return 3;
        }

        @Override
        public void close(boolean drained) {
            closed = true;
        }
    }

    /** An engine that only opens windows. */
    private TransferEngine engine() {
        return (TransferEngine) Proxy.newProxyInstance(
                TransferEngine.class.getClassLoader(), new Class<?>[] {TransferEngine.class}, (self, method, given) -> {
                    assertThat(method.getName()).isEqualTo("openWindow");
                    assertThat(given[2]).isEqualTo(3L);
                    return window;
                });
    }

    private Update update(ByteString digest) {
        return new Update(5, 9, digest, new HostSession(null, 1, "sender:1", "t", ""));
    }

    private ByteString digestOfNow() {
        ContentDigest digest = new ContentDigest(bytes, LandingParts.PRODUCTION.pieceBytes());
        while (!digest.finished()) {
            digest.advance(1);
        }
        return digest.value();
    }

    private void land() {
        landing.onFilled();
        while (!landing.compared()) {
            assertThat(landing.compare()).isPositive();
        }
    }

    @Test
    void shouldHoldWhatHasLandedWholeAndRight() {
        bytes.set(ValueLayout.JAVA_BYTE, LENGTH_BYTES - 1, (byte) 3);
        assertThat(landing.ground(update(digestOfNow()))).isEqualTo(77);
        land();
        assertThat(window.closed).isTrue();
        assertThat(landing.judge()).isTrue();
        landing.onApplying();
        landing.onApplied();
        assertThat(landing.state()).isEqualTo(LandingState.HELD);
        assertThat(landing.ground(update(digestOfNow()))).isEqualTo(77);
    }

    @Test
    void shouldNotApplyWhatIsNotThere() {
        assertThatThrownBy(landing::onApplying).isInstanceOf(IllegalStateException.class);
        landing.ground(update(digestOfNow()));
        assertThatThrownBy(landing::onApplying).isInstanceOf(IllegalStateException.class);
        land();
        assertThatThrownBy(landing::onApplying).isInstanceOf(IllegalStateException.class);
    }

    @Test
    void shouldBeEmptyWhenTheEngineCouldNotLoad() {
        landing.ground(update(digestOfNow()));
        land();
        assertThat(landing.judge()).isTrue();
        landing.onApplying();
        landing.onNotApplied();
        assertThat(landing.state()).isEqualTo(LandingState.EMPTY);
        assertThatThrownBy(landing::onApplying).isInstanceOf(IllegalStateException.class);
    }

    @Test
    void shouldForgetBytesThatAreNotThoseAnnounced() {
        landing.ground(update(digestOfNow()));
        bytes.set(ValueLayout.JAVA_BYTE, LENGTH_BYTES - 1, (byte) 1);
        land();
        assertThat(landing.judge()).isFalse();
        assertThat(landing.state()).isEqualTo(LandingState.EMPTY);
        assertThatThrownBy(landing::onApplying).isInstanceOf(IllegalStateException.class);
    }

    @Test
    void shouldBeUsedAgainOnlyAfterProof() {
        landing.ground(update(digestOfNow()));
        landing.quarantine();
        window.arrived = 2;
        assertThat(landing.provenByCount()).isFalse();
        assertThatThrownBy(() -> landing.ground(update(digestOfNow()))).isInstanceOf(IllegalStateException.class);
        assertThat(landing.windowsOpen()).isEqualTo(1);
        landing.release();
        assertThat(landing.windowsOpen()).isZero();
        assertThat(landing.ground(update(digestOfNow()))).isEqualTo(77);
    }

    @Test
    void shouldBeFreeWhenAllThatWasPostedIsCounted() {
        landing.ground(update(digestOfNow()));
        window.arrived = 1;
        landing.quarantine(2);
        assertThat(landing.provenByCount()).isFalse();
        window.arrived = 2;
        assertThat(landing.provenByCount()).isTrue();
    }

    @Test
    void shouldCountOnlyTheOpenWindow() {
        landing.ground(update(digestOfNow()));
        long cookie = landing.windowCookie();
        assertThat(landing.awaits(cookie)).isTrue();
        assertThat(landing.awaits(cookie - 1)).isFalse();
        land();
        assertThat(landing.awaits(cookie)).isFalse();
    }

    @Test
    void shouldReachEveryStateFromEmpty() {
        EnumSet<LandingState> reached = EnumSet.of(LandingState.EMPTY);
        while (reached.addAll(
                reached.stream().flatMap(state -> state.next().stream()).toList())) {}
        assertThat(reached).isEqualTo(EnumSet.allOf(LandingState.class));
        assertThat(LandingState.QUARANTINED.next()).containsExactly(LandingState.EMPTY);
        assertThat(LandingState.GROUND.next()).doesNotContain(LandingState.LANDED, LandingState.APPLYING);
    }
}
