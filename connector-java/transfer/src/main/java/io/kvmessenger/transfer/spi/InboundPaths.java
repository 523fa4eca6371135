package io.kvmessenger.transfer.spi;

import java.lang.foreign.MemorySegment;

/**
 * The data paths of one domain that one admitted peer has opened to this engine. Worker only.
 *
 * <p>They are over when nothing of the peer can land or be counted through them any more. If the domain itself can
 * ensure that, {@link #stop} ends them; if the peer writes into this process's memory, only the peer's confirmation or
 * its end does.
 */
public interface InboundPaths {
    /** A record of the peer's domain; returns whether it was taken. If not, it is offered again. */
    boolean onRecord(int kind, MemorySegment payload, long nowNs);

    /**
     * Takes over a data socket of the peer, whose purpose has been proven; false when there is no place for it.
     *
     * @param lane its place, from 1
     * @param serial its number among the sockets of its place
     * @throws IllegalStateException when the operating system refuses; the socket stays the caller's
     */
    default boolean take(int fd, int lane, int serial) {
        return false;
    }

    /** The peer has sent {@link PeerChannel#QUIET_KIND}. */
    default void onQuiet() {}

    /**
     * True if writes may still land after the peer's socket has closed, because a device executes them; then only the
     * end of the peer's process is proof.
     */
    default boolean outlivesHangUp() {
        return false;
    }

    /**
     * Begins to end the paths, since nothing more is needed from the peer.
     *
     * @throws IllegalStateException when a device refuses, as {@link #close}
     */
    void stop();

    /** The peer has closed its control socket or died. Its own stores have landed; what it sent may be in flight. */
    void onPeerGone();

    boolean isOver();

    /**
     * Whether a closed path still has to end, since landed bytes are being copied to a device, or a driver is at work on
     * it: {@link InboundChannel#onOver} follows.
     */
    default boolean isCopying() {
        return false;
    }

    /**
     * Closes the paths without notice: the peer has confirmed its end, its end was proven, or this engine ends.
     *
     * @throws IllegalStateException when a device refuses: then they are not over, and are closed again later
     */
    void close();
}
