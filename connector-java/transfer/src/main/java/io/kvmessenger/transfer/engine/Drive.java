package io.kvmessenger.transfer.engine;

import java.util.function.BooleanSupplier;
import java.util.function.Consumer;

/**
 * Runs the worker's duty cycle and parks the polling thread.
 *
 * <p>For the polling thread, except {@link #wake}.
 */
interface Drive {
    /** Idle spin time: longer than one small-write round trip, so latency-bound traffic never parks. */
    long SPIN_NS = 50_000;

    /** Below this the caller polls something else too: it parks at once instead of spinning. */
    long SPIN_WAIT_MIN_NS = 1_000_000;

    /** Lets the worker begin. */
    void start();

    /** Worker: there is something to poll, and there was nothing before. */
    void onCompletion();

    /** Does of the worker's work what the polling thread has to do. */
    void advance();

    /**
     * Returns when there is something to poll, when {@link #wake} was called since the last wait, or after the limit. It
     * spins first, unless the limit is below {@link #SPIN_WAIT_MIN_NS}.
     */
    void await(long limitNs, BooleanSupplier pollable);

    /** Any thread: ends a wait, or the next one. */
    void wake();

    /** Lets the worker get on, for a caller that waits for it and must not return before. */
    void yieldToWorker();

    /** Any thread: false when no byte is moved any more. */
    boolean isRunning();

    /** Ends the worker, in bounded time. */
    void end();

    /** Makes the one that turns a worker. */
    interface Maker {
        /** @param onBug told of an error that ended the worker */
        Drive make(Worker worker, Consumer<Throwable> onBug);
    }

    /** A pause in a spin. With few cores a spinning thread may hold the core of the one that it waits for: it yields. */
    @SuppressWarnings("ThreadPriorityCheck") // the yield is a courtesy: what is right does not depend on it
    static void pause(boolean yields) {
        if (yields) {
            Thread.yield();
        } else {
            Thread.onSpinWait();
        }
    }
}
