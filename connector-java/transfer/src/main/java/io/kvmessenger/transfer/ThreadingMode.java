package io.kvmessenger.transfer;

/** Which thread moves an engine's bytes. */
public enum ThreadingMode {
    /** A thread of its own: bytes move independently of the polling thread. */
    OWN_THREAD,
    /**
     * The polling thread, in {@link TransferEngine#poll} and {@link TransferEngine#await}: saves a core and the
     * hand-over between threads, but nothing moves while that thread does something else.
     */
    CALLER;

    /**
     * Fewest cores for {@link #OWN_THREAD}: each worker and each polling thread needs a core, on both sides if one host
     * runs both. On two cores a small write over shm takes seven times as long when four threads share them (kvperf, op
     * pingpong).
     */
    public static final int OWN_THREAD_CORES_MIN = 4;

    /** The mode that suits a machine with this many cores. */
    public static ThreadingMode forCores(int coreCount) {
        return coreCount < OWN_THREAD_CORES_MIN ? CALLER : OWN_THREAD;
    }
}
