package io.kvmessenger.transfer.spi;

/**
 * One way to move bytes between engines.
 *
 * <p>Called by the worker only, except where said. It does not choose peers and does not know other transports.
 */
public interface Transport {
    String name();

    /** Where peers reach this engine by this transport. Fixed once open; any thread. */
    String location();

    /** Starts to open data paths; the events tell how it went. Never blocks. */
    OutboundLink connect(String location, byte[] admissionKey, MessageQueue messages, LinkEvents events, long nowNs);

    /** Does what no event triggers; returns how much was done, 0 when idle. */
    int doWork(long nowNs);

    /** The window was closed: whatever is half received for it must let go, by {@link OpenWindow#endLanding}. */
    default void onWindowClosed(OpenWindow window) {}

    /** The worker is about to sleep: peers that do not speak through a descriptor must wake it from now on. */
    default void beforePark() {}

    /** The worker sleeps no more. */
    default void afterPark() {}

    /** Closes all links, without events, and releases everything. */
    void close();
}
