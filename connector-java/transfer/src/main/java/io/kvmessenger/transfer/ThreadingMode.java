package io.kvmessenger.transfer;

/** Which thread moves an engine's bytes. */
public enum ThreadingMode {
    /** One of its own: bytes move whatever the polling thread does. */
    OWN_THREAD,
    /**
     * The polling thread, in {@link TransferEngine#poll} and {@link TransferEngine#await}: no core and no way to another
     * thread is spent, and nothing moves while it does something else.
     */
    CALLER;

    /**
     * A thread of its own needs a core of its own, on both sides of a host that has both, and as many for those that poll.
     * On two cores a small write over shm takes seven times as long when four threads share them (kvperf, op pingpong).
     */
    public static final int OWN_THREAD_CORES_MIN = 4;

    /** What suits a machine with so many cores. */
    public static ThreadingMode forCores(int coreCount) {
        return coreCount < OWN_THREAD_CORES_MIN ? CALLER : OWN_THREAD;
    }
}
