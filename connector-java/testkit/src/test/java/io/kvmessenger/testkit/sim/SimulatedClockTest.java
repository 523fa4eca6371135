package io.kvmessenger.testkit.sim;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.testkit.sim.check.Violation;
import org.junit.jupiter.api.Test;

class SimulatedClockTest {
    private final SimulatedClock clock = new SimulatedClock();

    @Test
    void shouldEndARunWhoseTimeStandsStill() {
        spin(0);
        assertThatThrownBy(() -> advance(1)).isInstanceOf(Violation.class).hasMessageContaining("no time has passed");
    }

    @Test
    void shouldLetARunGoOnWhoseTimePasses() {
        spin(1);
        advance(3L * SimulatedClock.ACTIONS_AT_ONCE_MAX);
        assertThat(clock.nowNs()).isEqualTo(3L * SimulatedClock.ACTIONS_AT_ONCE_MAX);
    }

    private void spin(long periodNs) {
        clock.after(periodNs, () -> spin(periodNs));
    }

    private void advance(long untilNs) {
        while (clock.step(untilNs)) {}
    }
}
