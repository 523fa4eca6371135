package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;

/** What the messenger's thread takes in before its timers, and so its heartbeats, are served. */
class InboxTest {
    private final AtomicLong nowNs = new AtomicLong();
    private final Inbox inbox = new Inbox(nowNs::get, () -> {});

    private void add(int count, long costNs) {
        for (int i = 0; i < count; i++) {
            inbox.add(messenger -> nowNs.addAndGet(costNs));
        }
    }

    @Test
    void shouldTakeABoundedNumberOfInputsInADutyCycle() {
        add(3 * Inbox.INPUTS_PER_CYCLE_MAX, 1);
        assertThat(inbox.drainTo(null)).isEqualTo(Inbox.INPUTS_PER_CYCLE_MAX);
        assertThat(inbox.size()).isEqualTo(2 * Inbox.INPUTS_PER_CYCLE_MAX);
    }

    @Test
    void shouldTakeNoFurtherInputWhenThoseTakenLastedLong() {
        long costNs = Inbox.TAKING_MAX_NS / 4;
        add(1000, costNs);
        for (int cycle = 1; cycle <= 3; cycle++) {
            assertThat(inbox.drainTo(null)).isEqualTo(4);
            assertThat(nowNs).hasValue(cycle * Inbox.TAKING_MAX_NS);
        }
        add(1, 100 * Inbox.TAKING_MAX_NS);
        assertThat(inbox.size()).isEqualTo(1000 - 12 + 1);
    }
}
