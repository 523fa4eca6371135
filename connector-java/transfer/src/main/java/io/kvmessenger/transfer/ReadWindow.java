package io.kvmessenger.transfer;

/** Ranges of this engine's regions that one peer may read, until it is closed. Owned by the thread that polls the engine. */
public interface ReadWindow {
    /** What to tell the peer. */
    ReadKey key();

    /**
     * Lets no further read begin. When {@link CompletionHandler#onReadWindowClosed} is polled nothing is read from the ranges any
     * more, and they may be used for something else; until then what was asked for before may still be read. Idempotent.
     */
    void close();
}
