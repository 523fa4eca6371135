package io.kvmessenger.transfer.spi;

/** Hears of what was posted to one peer. Worker only; never called from within {@link Endpoint#post}. */
public interface CompletionSink {
    /** What was posted under this id needs its source no more. */
    void onSent(long postId);
}
