package io.kvmessenger.messenger;

/** Counts nothing. */
record SilentTally() implements Tally {
    @Override
    public void add(MessengerMetric metric, long count) {}

    @Override
    public void set(MessengerMetric metric, long value) {}

    @Override
    public void observe(MessengerMetric metric, double value) {}
}
