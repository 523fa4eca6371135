package io.kvmessenger.transfer.spi;

/** The writer's end of the one control socket to a peer. Worker only. */
public interface OutboundLink {
    /** Goes on with what no descriptor tells of; returns how much was done. */
    int doWork(long nowNs);

    /** Sends messages while there is room for them; returns how many. Once opened. */
    int send(MessageQueue messages);

    /** Sends what became of the peer's reads while there is room for it; returns how many. Once opened. */
    int sendAnswers(MessageQueue answers);

    /** For paths of another domain, or of the same once more. */
    OutboundChannel channel(Domain domain);

    /** The paths are closed: nothing is written through them any more. */
    void detach(PeerChannel channel);

    /**
     * Ends the link; no event follows. The paths are closed already: to the peer the end of the link tells that nothing is
     * written any more. Idempotent.
     */
    void close();
}
