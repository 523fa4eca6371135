package io.kvmessenger.transfer.link;

import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PeerChannel;

/** The writer's end of the one control socket to a peer. Worker only. */
public interface OutboundLink {
    /** Does the work without descriptors; returns the amount done. */
    int doWork(long nowNs);

    /** Sends messages while there is room for them; returns how many. Only once opened. */
    int send(MessageQueue messages);

    /** Sends the results of the peer's reads while there is room for them; returns how many. Only once opened. */
    int sendAnswers(MessageQueue answers);

    /** A channel for paths of another domain, or of the same one again. */
    OutboundChannel channel(Domain domain);

    /** The paths are closed: nothing is written through them any more. */
    void detach(PeerChannel channel);

    /**
     * Ends the link; no event follows. The paths must be closed already: the end of the link tells the peer that
     * nothing is written any more. Idempotent.
     */
    void close();
}
