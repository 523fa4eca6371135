package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

/** What is told passes the ring once and in order: an event that is lost is a request that never ends. */
final class CompletionRingTest {
    private static final int CAPACITY = 8;

    private int signals;
    private final CompletionRing ring = new CompletionRing(CAPACITY, () -> signals++);
    private final List<Long> seen = new ArrayList<>();

    private void push(long cookie) {
        ring.push(CompletionRing.WRITE_COMPLETED, cookie, 0, null, null);
    }

    private int drain(int limit) {
        return ring.drain((kind, cookie, value, subject, detail) -> seen.add(cookie), limit);
    }

    @Test
    void shouldEndRatherThanOverwriteAnEventThatWasNotPolled() {
        for (int offset = 0; offset <= CAPACITY; offset++) {
            for (int i = 0; i < CAPACITY; i++) {
                push(i);
            }
            assertThat(ring.size()).isEqualTo(CAPACITY);
            assertThatThrownBy(() -> push(99))
                    .isInstanceOf(AssertionError.class)
                    .hasMessageContaining("overflowed");
            seen.clear();
            assertThat(drain(Integer.MAX_VALUE)).isEqualTo(CAPACITY);
            assertThat(seen).containsExactly(0L, 1L, 2L, 3L, 4L, 5L, 6L, 7L);
            push(-1); // so that each place is once the first
            assertThat(drain(1)).isEqualTo(1);
        }
    }

    @Test
    void shouldSignalWheneverItWasEmptyAndAtNoOtherTime() {
        push(1);
        push(2);
        assertThat(signals).isEqualTo(1);
        assertThat(drain(1)).isEqualTo(1);
        push(3);
        assertThat(signals).as("it was not empty").isEqualTo(1);
        assertThat(drain(5)).isEqualTo(2);
        push(4);
        assertThat(signals).isEqualTo(2);
        assertThat(seen).containsExactly(1L, 2L, 3L);
    }
}
