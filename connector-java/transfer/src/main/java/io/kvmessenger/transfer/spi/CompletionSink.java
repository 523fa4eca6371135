package io.kvmessenger.transfer.spi;

/** Receives the completions of posts to one peer. Worker only; never called from within {@link Endpoint#post}. */
public interface CompletionSink {
    /** The post of this id does not need its source any more. */
    void onSent(long postId);
}
