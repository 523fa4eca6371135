package io.kvmessenger.transfer;

/** Ranges of this engine's regions that one peer may read, until closed. Owned by the thread that polls the engine. */
public interface ReadWindow {
    /** The key to send to the peer. */
    ReadKey key();

    /**
     * Rejects all further reads. Reads requested earlier may still access the ranges until
     * {@link CompletionHandler#onReadWindowClosed} is polled; then the memory may be reused. Idempotent.
     */
    void close();
}
