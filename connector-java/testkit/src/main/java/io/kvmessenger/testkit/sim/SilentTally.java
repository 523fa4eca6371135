package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.CountedReason;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.Tally;

/** Counts nothing: for messengers whose metrics are not read, and for those of which one is. Any thread. */
public class SilentTally implements Tally {
    @Override
    public void add(MessengerMetric metric, long count) {}

    @Override
    public void add(MessengerMetric metric, CountedReason reason) {}

    @Override
    public void set(MessengerMetric metric, long value) {}

    @Override
    public void observe(MessengerMetric metric, double value) {}
}
