package io.kvmessenger.messenger.port;

/** Port: where counted facts go. Cheap; called on the messenger's thread. */
public interface Tally {
    void add(MessengerMetric metric, long count);

    void set(MessengerMetric metric, long value);

    void observe(MessengerMetric metric, double value);
}
