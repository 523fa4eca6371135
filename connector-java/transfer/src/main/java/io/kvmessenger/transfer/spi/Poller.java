package io.kvmessenger.transfer.spi;

/**
 * The worker's clock, and how it waits: for owners of descriptors that became ready, and to be woken.
 *
 * <p>{@link #wake} from any thread, everything else by the worker.
 */
public interface Poller extends AutoCloseable {
    /** When {@link #tick} was called, or {@link #poll} found what it handed out; monotonic. */
    long nowNs();

    /** Looks at the clock; returns what it shows. */
    long tick();

    /**
     * Hands out what is ready; waits for it at most so long. Returns how many owners were called, and one more after a
     * {@link #wake}: it may tell of something that the caller has looked at before it was there.
     */
    int poll(int timeoutMillis);

    /** Ends a wait in {@link #poll}, or the next one; does nothing once closed. */
    void wake();

    @Override
    void close();
}
