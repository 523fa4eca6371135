package io.kvmessenger.messenger.port;

/** Port: the monotonic clock, in nanoseconds. Simulations supply their own. */
@FunctionalInterface
public interface NanoClock {
    long nowNs();
}
