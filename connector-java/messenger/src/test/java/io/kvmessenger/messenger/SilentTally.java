package io.kvmessenger.messenger;

import io.kvmessenger.messenger.port.CountedReason;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.Tally;

/** Counts nothing. */
public record SilentTally() implements Tally {
    @Override
    public void add(MessengerMetric metric, long count) {}

    @Override
    public void add(MessengerMetric metric, CountedReason reason) {}

    @Override
    public void set(MessengerMetric metric, long value) {}

    @Override
    public void observe(MessengerMetric metric, double value) {}
}
