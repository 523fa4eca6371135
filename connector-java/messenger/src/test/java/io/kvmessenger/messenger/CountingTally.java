package io.kvmessenger.messenger;

import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.Tally;
import java.util.EnumMap;
import java.util.Map;

/** Keeps the sums of counters for a test. */
record CountingTally(Map<MessengerMetric, Long> sums) implements Tally {
    CountingTally() {
        this(new EnumMap<>(MessengerMetric.class));
    }

    @Override
    public void add(MessengerMetric metric, long count) {
        sums.merge(metric, count, Long::sum);
    }

    long sum(MessengerMetric metric) {
        return sums.getOrDefault(metric, 0L);
    }

    @Override
    public void set(MessengerMetric metric, long value) {}

    @Override
    public void observe(MessengerMetric metric, double value) {}
}
