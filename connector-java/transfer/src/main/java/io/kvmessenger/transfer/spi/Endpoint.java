package io.kvmessenger.transfer.spi;

/**
 * One path to one peer: what the engine posts writes to. Worker only.
 *
 * <p>It has no queue of requests and knows neither peers nor other paths: what it cannot take now stays with the engine,
 * which offers it again, here or elsewhere.
 */
public interface Endpoint {
    /** Networks by which one peer is reached, at most. */
    int NETWORKS_MAX = 8;

    /**
     * Which of the peer's networks it takes, from 0: paths of one network share what limits their speed. Where a peer has more
     * than one, each is given no more than it can move soon.
     */
    default int network() {
        return 0;
    }

    /** Of what it was given, the bytes that the peer's machine has not acknowledged; for paths of several networks only. */
    default long heldBytes() {
        return 0;
    }

    /** From now on no more than about so many bytes wait in it until they are on their way; for paths of several networks only. */
    default void limitUnsent(long lengthBytes) {}

    /**
     * Takes the first pages of a batch as one write, named {@code postId} until {@link CompletionSink#onSent}. The batch is the
     * caller's again when this returns, shortened to what was taken; the source memory is read until the write is told as
     * sent, or the path as lost. Calls no events.
     *
     * @return the units taken (a page is one, and so is a batch without pages); 0 when there is no room: offer it again
     */
    int post(WriteBatch batch, long postId);

    /**
     * Nothing was heard of what it has for {@link Domain#silenceLimitNs}: it takes no more posts. It is told as lost as soon as it
     * is known what of them has arrived, or its paths as failed. Idempotent.
     */
    default void giveUp() {}

    /**
     * Whether something that was told as sent may not have arrived when its paths fail: then to go on by another path would leave
     * it out, and the peer is lost.
     */
    default boolean mayOweDelivery() {
        return false;
    }
}
