package io.kvmessenger.messenger.port;

/** Port: where counted facts of one peer go, looked up once for a session. Messenger's thread. */
public interface PeerTally {
    /** Figures are not told apart by peer. */
    PeerTally NONE = new PeerTally() {
        @Override
        public void add(MessengerMetric metric, long count) {}

        @Override
        public void end() {}
    };

    /** Allocates nothing: counted for each layer that is sent. */
    void add(MessengerMetric metric, long count);

    /** The session is over; what ends later because of that may still be counted. */
    void end();
}
