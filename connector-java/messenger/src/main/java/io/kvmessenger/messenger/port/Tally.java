package io.kvmessenger.messenger.port;

import io.kvmessenger.transfer.Peer;
import java.util.Optional;

/** Port: counts metrics. Cheap; safe from any thread, called on the messenger's thread wherever KV is moved. */
public interface Tally {
    void add(MessengerMetric metric, long count);

    /** Increments a counter with the label {@code reason}. */
    void add(MessengerMetric metric, CountedReason reason);

    void set(MessengerMetric metric, long value);

    void observe(MessengerMetric metric, double value);

    /** Shows what tokens take now. */
    default void show(EngineCommand.Prices prices) {}

    /**
     * Counts the metrics that are labelled by peer.
     *
     * @param engineId of a peer whose handshake is complete
     * @param writtenTo the peer's handle at the transfer engine, if this engine writes to it
     */
    default PeerTally ofPeer(String engineId, Optional<Peer> writtenTo) {
        return PeerTally.NONE;
    }
}
