package io.kvmessenger.transfer.socket;

/** The owner of a descriptor in an {@link EventLoop}. Worker only. */
@FunctionalInterface
public interface Pollable {
    /** @param mask EPOLL bits that are set */
    void onReady(int mask, long nowNs);
}
