package io.kvmessenger.messenger.port;

/** Port: where counted facts go. Cheap; safe from any thread, called on the messenger's in all that moves KV. */
public interface Tally {
    void add(MessengerMetric metric, long count);

    /** One more of a counter that is told apart by reason. */
    void add(MessengerMetric metric, CountedReason reason);

    void set(MessengerMetric metric, long value);

    void observe(MessengerMetric metric, double value);
}
