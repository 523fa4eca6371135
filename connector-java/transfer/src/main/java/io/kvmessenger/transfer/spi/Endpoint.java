package io.kvmessenger.transfer.spi;

/**
 * One path to one peer: the engine posts writes to it. Worker only.
 *
 * <p>It has no queue of requests and knows neither peers nor other paths: what it cannot take now stays with the
 * engine, which offers it again, here or elsewhere.
 */
public interface Endpoint {
    /** Result of {@link #pace}: the path hands over what it is given at once. */
    long UNPACED = -1;

    /** Limit on the networks by which one peer is reached. */
    int NETWORKS_MAX = 8;

    /**
     * Which of the peer's networks it uses, from 0: paths of one network share its bandwidth. If a peer has several,
     * each is given no more than it can move soon.
     */
    default int network() {
        return 0;
    }

    /** Bytes that it was given and the peer's machine has not acknowledged; only for paths of several networks. */
    default long heldBytes() {
        return 0;
    }

    /**
     * A number that changes when the peer's machine acknowledges bytes, so that a post that takes long differs from one
     * that is stuck; constant if unknown.
     */
    default long acknowledgedBytes() {
        return 0;
    }

    /**
     * Names the link that it takes among those of this machine, also to other processes: a device, or an address of its
     * own; "" if only paths of this process take it.
     */
    default String link() {
        return "";
    }

    /** From now on at most about this many bytes may wait in it to be sent; only for paths that are spread or paced. */
    default void limitUnsent(long lengthBytes) {}

    /**
     * From now on at most about this many bytes may be in it that the peer's machine has not acknowledged, sent or not,
     * as far as it can; {@code Long.MAX_VALUE} for as many as it likes.
     */
    default void limitHeld(long lengthBytes) {}

    /** The least time in which the peer's machine has acknowledged bytes; 0 if unknown. */
    default long leastRoundTripNs() {
        return 0;
    }

    /**
     * From now on it hands at most about this many bytes to its link, until the next call.
     *
     * @param lengthBytes {@code Long.MAX_VALUE} for as many as there are
     * @return the bytes handed over since the last call; or {@link #UNPACED}, and then it is posted to only what may go
     */
    default long pace(long lengthBytes) {
        return UNPACED;
    }

    /**
     * Takes the first pages of a batch as one write, identified by {@code postId} until {@link CompletionSink#onSent}.
     * The batch is the caller's again when this returns, shortened to what was taken; the source memory is read until
     * the write is reported as sent, or the path as lost. Calls no events.
     *
     * @return the units taken (each page is one, and so is a batch without pages); 0 when there is no room: offer it
     *     again
     */
    int post(WriteBatch batch, long postId);

    /** The most pages that it takes at once of what is gathered for it. */
    default int gatheredPagesMax() {
        return Integer.MAX_VALUE;
    }

    /** The most bytes of pages that it takes at once of what is gathered for it, except for a single page. */
    default long gatheredBytesMax() {
        return Long.MAX_VALUE;
    }

    /**
     * It has reported nothing about its posts, and moved none of their bytes, for {@link Capabilities#silenceLimitNs}: it
     * accepts no more. Its loss is
     * reported once it is known what has arrived, or its paths fail. Idempotent.
     */
    default void giveUp() {}

    /**
     * Whether a post reported as sent may not have arrived when its paths fail: then continuing by another path would
     * leave it out, so the peer is lost.
     */
    default boolean mayOweDelivery() {
        return false;
    }
}
