package io.kvmessenger.transfer;

/** Wakes the thread that polls, from any thread; cheap when it is awake already. */
@FunctionalInterface
public interface Doorbell {
    void ring();
}
