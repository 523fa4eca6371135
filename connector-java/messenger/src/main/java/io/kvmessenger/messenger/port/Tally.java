package io.kvmessenger.messenger.port;

import io.kvmessenger.transfer.Peer;
import java.util.Optional;

/** Port: where counted facts go. Cheap; safe from any thread, called on the messenger's in all that moves KV. */
public interface Tally {
    void add(MessengerMetric metric, long count);

    /** One more of a counter that is told apart by reason. */
    void add(MessengerMetric metric, CountedReason reason);

    void set(MessengerMetric metric, long value);

    void observe(MessengerMetric metric, double value);

    /**
     * Where the figures go that are told apart by peer.
     *
     * @param engineId of a peer whose handshake is complete
     * @param writtenTo its handle where this engine writes to it
     */
    default PeerTally ofPeer(String engineId, Optional<Peer> writtenTo) {
        return PeerTally.NONE;
    }
}
