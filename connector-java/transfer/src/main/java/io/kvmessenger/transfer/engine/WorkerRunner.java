package io.kvmessenger.transfer.engine;

import java.util.List;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;

/**
 * Runs the workers' duty cycles and parks the polling thread. An error that ends one worker ends them all.
 *
 * <p>For the polling thread, except {@link #wake}.
 */
interface WorkerRunner {
    /** Idle spin time: longer than one small-write round trip, so latency-bound traffic never parks. */
    long SPIN_NS = 50_000;

    /** Below this the caller polls something else too: it parks at once instead of spinning. */
    long SPIN_WAIT_MIN_NS = 1_000_000;

    /** Lets the workers begin. When it throws, all of them have ended. */
    void start();

    /** Any worker: its ring of completions was empty, and is not any more. */
    void onCompletion();

    /** Does the part of the workers' work that is the polling thread's. */
    void advance();

    /**
     * Returns when there is something to poll, when {@link #wake} was called since the last wait, or after the limit. It
     * spins first, unless the limit is below {@link #SPIN_WAIT_MIN_NS}.
     */
    void await(long limitNs, BooleanSupplier pollable);

    /** Any thread: ends a wait, or the next one. */
    void wake();

    /** Lets the workers get on, for a caller that waits for them and must not return before. */
    void yieldToWorkers();

    /** Any thread: false when no worker moves a byte any more. */
    boolean isRunning();

    /** Ends the workers, in bounded time. */
    void end();

    /** Chooses how an engine's workers are run. */
    interface Factory {
        /** @param onBug gets an error that ended a worker, on the thread that ran it */
        WorkerRunner make(List<Worker> workers, Consumer<Throwable> onBug);
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
