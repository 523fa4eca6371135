package io.kvmessenger.transfer.socket;

/** The owner of a descriptor in an {@link EventLoop}. Worker only. */
public interface Pollable {
    /** @param mask EPOLL bits that are set */
    void onReady(int mask, long nowNs);

    /** {@link #onReady} threw: the owner ends whatever the descriptor belongs to, and nothing else. */
    void onError(Throwable error);
}
