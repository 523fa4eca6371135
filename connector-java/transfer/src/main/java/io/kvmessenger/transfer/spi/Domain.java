package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * One open channel into and out of this machine: one NIC, one listener, or one mapper of memory.
 *
 * <p>Called by the worker only, except where stated. It does not select peers and does not know other domains. Its work
 * without a descriptor is done in {@link #poll}; events of descriptors reach it through the engine's {@link Poller}.
 * Completed sends are reported to the peer's {@link PathEvents}, arrivals to the {@link InboundPort} that it was opened
 * with.
 */
public interface Domain {
    /** Result of {@link #poll}: work is pending that no event will signal, so poll again soon. */
    int LOOK_SOON = OutboundPaths.LOOK_SOON;

    /** Name of its transport. */
    String name();

    /** Where peers reach this engine by this domain. Fixed once open; any thread. */
    String location();

    /** What was requested of it and cannot be used, each with its reason in one line. Fixed once open. */
    default List<String> leftOut() {
        return List.of();
    }

    /** Notes on how registered memory is reached, one line each, where an operator should know. Messenger's thread. */
    default List<String> notes() {
        return List.of();
    }

    /** Runs of bytes that kernels of devices have copied for it. Any thread. */
    default long runsCopiedByKernel() {
        return 0;
    }

    /**
     * Makes a region writable by peers through this domain. Messenger's thread.
     *
     * @param region of host memory, whose descriptor, if any, cannot shrink; or of device memory
     * @return what a peer needs for it, or null if this domain cannot reach such memory
     */
    RemoteKey register(Region region);

    /** Whether writes by this domain can have such memory as their source. Any thread. */
    default boolean canRead(Memory memory) {
        return memory instanceof Memory.Host;
    }

    /** What its paths can do. Fixed once open; any thread. */
    default Capabilities capabilities() {
        return Capabilities.PLAIN;
    }

    /** Withdraws the key; the caller ensures that nothing writes to its region any more. Messenger's thread. */
    default void deregister(RemoteKey key) {}

    /**
     * Starts to open data paths to a peer; the events report the result. Never blocks.
     *
     * @param channel to the peer's domain of the same transport
     * @param location of the peer's domain
     * @throws IllegalArgumentException when the location is invalid, or out of reach for this domain
     * @throws IllegalStateException when the operating system refuses
     */
    OutboundPaths attach(OutboundChannel channel, String location, PathEvents events, long nowNs);

    /**
     * Lets an admitted peer open data paths to this engine.
     *
     * @param wish the request of the peer's domain
     * @throws IllegalArgumentException when the wish is not valid for this domain
     * @throws IllegalStateException when the operating system refuses
     */
    InboundPaths admit(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs);

    /** Does the work without descriptors; returns the amount done, 0 when idle, or {@link #LOOK_SOON}. */
    int poll(long nowNs);

    /** The window was closed: a half-received write for it must be abandoned, by {@link OpenWindow#endLanding}. */
    default void onWindowClosed(OpenWindow window) {}

    /** The worker is about to sleep: from now on anything that {@link #poll} would find must wake the poller. */
    default void arm() {}

    /** Ends {@link #arm}: the worker polls again by itself. */
    default void disarm() {}

    /** Releases everything; all paths are closed already. */
    void close();
}
