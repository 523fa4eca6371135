package io.kvmessenger.transfer.spi;

/**
 * The worker's clock and its wait: for descriptors that become ready, and for wake-ups.
 *
 * <p>{@link #wake} from any thread, everything else by the worker.
 */
public interface Poller extends AutoCloseable {
    /** Time of the last {@link #tick}, or of the last {@link #poll} that found events; monotonic. */
    long nowNs();

    /** Reads the clock; returns its value. */
    long tick();

    /**
     * Calls the owners of ready descriptors; waits for the first at most {@code timeoutMillis}. Returns how many owners
     * were called, plus one after a {@link #wake}, since that may signal something that the caller checked too early.
     */
    int poll(int timeoutMillis);

    /** Ends a wait in {@link #poll}, or the next one; does nothing once closed. */
    void wake();

    @Override
    void close();
}
