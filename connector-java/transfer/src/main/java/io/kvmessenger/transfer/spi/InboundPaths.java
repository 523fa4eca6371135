package io.kvmessenger.transfer.spi;

import java.lang.foreign.MemorySegment;

/**
 * The data paths of one domain that one admitted peer has opened to this engine. Worker only.
 *
 * <p>They are over when nothing of the peer can land or be counted through them any more. Where the domain itself can see to
 * that, {@link #stop} is the end; where the peer writes into this process's memory, its word or its end is.
 */
public interface InboundPaths {
    /** What the peer's domain says; returns whether it was taken, if not it is offered again. */
    boolean onRecord(int kind, MemorySegment payload, long nowNs);

    /**
     * A data socket of the peer's, which has proven what it is for. Takes it over; false when there is no place for it.
     *
     * @param lane its place, from 1
     * @param serial its number among the sockets of its place
     * @throws IllegalStateException when the operating system refuses; the socket stays the caller's
     */
    default boolean take(int fd, int lane, int serial) {
        return false;
    }

    /** The peer has said {@link PeerChannel#QUIET_KIND}. */
    default void onQuiet() {}

    /**
     * Whether the peer's hang-up proves nothing as long as its process lives: a device goes on with what a process had queued until
     * the kernel has taken that process apart, which may be after it closed the process's sockets.
     */
    default boolean outlivesHangUp() {
        return false;
    }

    /** Nothing is wanted from the peer any more. */
    void stop();

    /** The peer has closed its control socket, or has died: what it wrote itself has arrived, what it sent may be on its way. */
    void onPeerGone();

    boolean isOver();

    /** Whether what has landed is on its way to a device: they are not over before, and tell it by {@link InboundChannel#onOver}. */
    default boolean isCopying() {
        return false;
    }

    /** The end, without a word: the peer has said that it is over, or its end was proven, or this engine ends. */
    void close();
}
