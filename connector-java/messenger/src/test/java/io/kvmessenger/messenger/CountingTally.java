package io.kvmessenger.messenger;

import io.kvmessenger.messenger.port.CountedReason;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.Tally;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.Map;

/** Keeps the sums of counters, the number of observations and the last value of gauges for a test; a bug is thrown once. */
public record CountingTally(
        Map<MessengerMetric, Long> sums,
        Map<CountedReason, Long> reasons,
        Map<MessengerMetric, Long> gauges,
        Map<MessengerMetric, Error> bugs)
        implements Tally {
    public CountingTally() {
        this(
                new EnumMap<>(MessengerMetric.class),
                new HashMap<>(),
                new EnumMap<>(MessengerMetric.class),
                new EnumMap<>(MessengerMetric.class));
    }

    @Override
    public void add(MessengerMetric metric, long count) {
        Error bug = bugs.remove(metric);
        if (bug != null) {
            throw bug;
        }
        sums.merge(metric, count, Long::sum);
    }

    @Override
    public void add(MessengerMetric metric, CountedReason reason) {
        add(metric, 1);
        reasons.merge(reason, 1L, Long::sum);
    }

    long sum(CountedReason reason) {
        return reasons.getOrDefault(reason, 0L);
    }

    public long sum(MessengerMetric metric) {
        return sums.getOrDefault(metric, 0L);
    }

    @Override
    public void set(MessengerMetric metric, long value) {
        gauges.put(metric, value);
    }

    @Override
    public void observe(MessengerMetric metric, double value) {
        add(metric, 1);
    }
}
