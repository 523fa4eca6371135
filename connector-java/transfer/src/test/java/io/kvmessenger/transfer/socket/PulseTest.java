package io.kvmessenger.transfer.socket;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** heartbeats in time that the test moves. */
final class PulseTest {
    private static final long LIMIT_NS = 1_000;
    private static final long INTERVAL_NS = LIMIT_NS / Pulse.BEATS;
    private static final long BEGAN_NS = Math.subtractExact(Long.MAX_VALUE, LIMIT_NS);

    private final Pulse pulse = new Pulse(LIMIT_NS, BEGAN_NS);

    @Test
    void shouldGiveAHeartbeatOncePerInterval() {
        assertThat(pulse.isDue(BEGAN_NS + INTERVAL_NS - 1)).isFalse();
        assertThat(pulse.isDue(BEGAN_NS + INTERVAL_NS)).isTrue();
        pulse.onGiven(BEGAN_NS + INTERVAL_NS);
        assertThat(pulse.isDue(BEGAN_NS + 2 * INTERVAL_NS - 1)).isFalse();
        assertThat(pulse.isDue(BEGAN_NS + 2 * INTERVAL_NS)).isTrue();
    }

    @ParameterizedTest
    @ValueSource(longs = {1, 7, INTERVAL_NS})
    void shouldFindAPeerSilentAfterTheLimitHoweverOftenItLooks(long stepNs) {
        long nowNs = BEGAN_NS;
        while (nowNs - BEGAN_NS + stepNs <= LIMIT_NS) {
            nowNs += stepNs;
            pulse.look(nowNs);
            assertThat(pulse.isSilent()).isFalse();
        }
        pulse.look(nowNs + stepNs);
        assertThat(pulse.isSilent()).isTrue();
        pulse.onHeard();
        assertThat(pulse.isSilent()).isFalse();
    }

    @Test
    void shouldFindNoPeerSilentThatGivesItsHeartbeats() {
        for (long nowNs = BEGAN_NS; nowNs - BEGAN_NS < 100 * LIMIT_NS; nowNs += INTERVAL_NS) {
            pulse.look(nowNs);
            assertThat(pulse.isSilent()).isFalse();
            pulse.onHeard();
        }
    }

    /** The peer's heartbeats of that time may wait in the socket. */
    @Test
    void shouldNotHoldAPauseOfItsOwnAgainstThePeer() {
        pulse.look(BEGAN_NS + 1_000 * LIMIT_NS);
        assertThat(pulse.isSilent()).isFalse();
    }
}
