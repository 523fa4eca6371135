package io.kvmessenger.messenger.port;

/** Port: counts the metrics of one peer; looked up once per session. Called on the messenger's thread. */
public interface PeerTally {
    /** For metrics without a label for the peer. */
    PeerTally NONE = new PeerTally() {
        @Override
        public void add(MessengerMetric metric, long count) {}

        @Override
        public void end() {}
    };

    /** Must not allocate: called for each layer that is sent. */
    void add(MessengerMetric metric, long count);

    default void set(MessengerMetric metric, long value) {}

    /** The session is over; counts that result from its end may still follow. */
    void end();
}
