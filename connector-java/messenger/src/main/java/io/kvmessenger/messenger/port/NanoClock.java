package io.kvmessenger.messenger.port;

/** Port: the monotonic clock, in nanoseconds. Simulations bring their own. */
@FunctionalInterface
public interface NanoClock {
    long nowNs();
}
