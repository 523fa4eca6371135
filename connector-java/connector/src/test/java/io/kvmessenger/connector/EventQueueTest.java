package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.messenger.EngineEvents;
import io.kvmessenger.messenger.MessengerMetric;
import io.kvmessenger.messenger.Tally;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class EventQueueTest {
    private final List<MessengerMetric> counted = new ArrayList<>();
    private final EventQueue queue = new EventQueue(new CountingTally(counted));

    @Test
    void shouldSayNothingInNoBytes() {
        assertThat(queue.drain(1 << 16)).isEmpty();
    }

    @Test
    void shouldKeepWhatDoesNotFitForTheNextPoll() throws Exception {
        for (int i = 0; i < 100; i++) {
            queue.released("request-" + i);
        }
        int seen = 0;
        for (byte[] json = queue.drain(512); json.length > 0; json = queue.drain(512)) {
            assertThat(json.length).isLessThanOrEqualTo(512);
            for (Object event : (List<?>) JSON.std.mapFrom(json).get("events")) {
                assertThat(((Map<?, ?>) event).get("request")).isEqualTo("request-" + seen++);
            }
        }
        assertThat(seen).isEqualTo(100);
    }

    @Test
    void shouldRefuseAPollTooSmallForTheNextEventAndKeepIt() {
        queue.failed("r", "x".repeat(300));
        assertThatThrownBy(() -> queue.drain(100)).hasMessageContaining("poll was given 100 bytes");
        assertThat(queue.drain(1000)).isNotEmpty();
    }

    @Test
    void shouldDropLogLinesBeyondTheLimitButNeverTerminalEvents() throws Exception {
        for (int i = 0; i < EventQueue.NOTES_MAX + 10; i++) {
            queue.log(EngineEvents.Level.INFO, "line");
        }
        queue.arrived("r", 1);
        List<?> events =
                (List<?>) JSON.std.mapFrom(queue.drain(Integer.MAX_VALUE - 8)).get("events");
        assertThat(events).hasSize(EventQueue.NOTES_MAX + 1);
        assertThat(((Map<?, ?>) events.getLast()).get("event")).isEqualTo("arrived");
        assertThat(counted).hasSize(10).containsOnly(MessengerMetric.EVENTS_DROPPED);
    }

    private record CountingTally(List<MessengerMetric> counted) implements Tally {
        @Override
        public void add(MessengerMetric metric, long count) {
            counted.add(metric);
        }

        @Override
        public void set(MessengerMetric metric, long value) {}

        @Override
        public void observe(MessengerMetric metric, double value) {}
    }
}
