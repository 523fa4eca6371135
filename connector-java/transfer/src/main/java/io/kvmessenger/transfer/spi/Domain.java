package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * One way into and out of this machine that is open: one NIC, one listener, or one mapper of memory.
 *
 * <p>Called by the worker only, except where said. It does not choose peers and does not know other domains. What of its own
 * moves bytes without a descriptor is moved in {@link #poll}; what it hears by a descriptor it hears through the engine's
 * {@link Poller}. What has been sent is told to the {@link PathEvents} of its peer, what has arrived to the
 * {@link InboundPort} that it was opened with.
 */
public interface Domain {
    /** There is something to do soon, and nothing will tell when. */
    int LOOK_SOON = OutboundPaths.LOOK_SOON;

    /** Its transport's. */
    String name();

    /** Where peers reach this engine by this domain. Fixed once open; any thread. */
    String location();

    /** What of it was asked for and cannot be used, and why, one line each. Fixed once open. */
    default List<String> leftOut() {
        return List.of();
    }

    /** How memory that was registered is reached, where that is worth knowing, one line each. Messenger's thread. */
    default List<String> notes() {
        return List.of();
    }

    /**
     * Makes a region one that peers can write to through this domain. Messenger's thread.
     *
     * @param region of host memory, whose descriptor cannot shrink where it has one, or of a device's
     * @return what a peer needs for it, or null where this domain cannot reach such memory
     */
    RemoteKey register(Region region);

    /** Whether writes by this domain can have such memory as their source. Any thread. */
    default boolean canRead(Memory memory) {
        return memory instanceof Memory.Host;
    }

    /**
     * Whether its paths take batches that are {@link WriteBatch#isGathered gathered}, so that what it cannot read is gathered for it. Any
     * thread.
     */
    default boolean readsGathered() {
        return false;
    }

    /** The region of the key is written to no more. Messenger's thread. */
    default void deregister(RemoteKey key) {}

    /**
     * Starts to open data paths to a peer; the events tell how it went. Never blocks.
     *
     * @param channel to the peer's domain of the same transport
     * @param location where that is
     * @throws IllegalArgumentException when the location is none, or out of reach for this domain
     * @throws IllegalStateException when the operating system refuses
     */
    OutboundPaths attach(OutboundChannel channel, String location, PathEvents events, long nowNs);

    /**
     * Lets an admitted peer open data paths to this engine.
     *
     * @param wish what the peer's domain has asked for
     * @throws IllegalArgumentException when the wish is none of this domain
     * @throws IllegalStateException when the operating system refuses
     */
    InboundPaths admit(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs);

    /** How long a peer may be without any of its paths, which may come back, before it is reached another way. */
    default long repairLimitNs() {
        return 0;
    }

    /** How long nothing may be heard of what a path was given, before it is given up; 0 = it hears of each loss itself. */
    default long silenceLimitNs() {
        return 0;
    }

    /** Does what no descriptor tells of; returns how much was done, 0 when idle, or {@link #LOOK_SOON}. */
    int poll(long nowNs);

    /** The window was closed: whatever is half received for it must let go, by {@link OpenWindow#endLanding}. */
    default void onWindowClosed(OpenWindow window) {}

    /** The worker is about to sleep: from now on whatever {@link #poll} would find must wake the {@link Poller}. */
    default void arm() {}

    /** The worker sleeps no more. */
    default void disarm() {}

    /** Releases everything; all paths are closed already. */
    void close();
}
