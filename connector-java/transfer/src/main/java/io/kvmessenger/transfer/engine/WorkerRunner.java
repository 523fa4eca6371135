package io.kvmessenger.transfer.engine;

import java.util.List;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;

/**
 * Runs the workers' duty cycles and parks the polling thread. An error that ends one worker ends them all.
 *
 * <p>Called by the polling thread, except {@link #wake}.
 */
interface WorkerRunner {
    /** Idle spin time: longer than one small-write round trip, so latency-bound traffic never parks. */
    long SPIN_NS = 50_000;

    /** Below this the caller polls something else too: it parks at once instead of spinning. */
    long SPIN_WAIT_MIN_NS = 1_000_000;

    /** Starts the workers. If it throws, all of them have ended. */
    void start();

    /** Any worker: its ring of completions has become non-empty. */
    void onCompletion();

    /** Does the polling thread's share of the workers' work. */
    void advance();

    /**
     * Returns when there is something to poll, when {@link #wake} was called since the last wait, or after the limit.
     * It spins first, unless the limit is below {@link #SPIN_WAIT_MIN_NS}.
     */
    void await(long limitNs, BooleanSupplier pollable);

    /** Any thread: ends a wait, or the next one. */
    void wake();

    /** Lets the workers make progress, for a caller that must not return before they have. */
    void yieldToWorkers();

    /** Any thread: false when no worker moves bytes any more. */
    boolean isRunning();

    /** Ends the workers, in bounded time. */
    void end();

    /** Selects how an engine's workers are run. */
    interface Factory {
        /** @param onBug receives an error that ended a worker, on the thread that ran it */
        WorkerRunner make(List<Worker> workers, Consumer<Throwable> onBug);
    }

    /** One pause of a spin. With few cores it yields: it may occupy the core of the thread that it waits for. */
    @SuppressWarnings("ThreadPriorityCheck") // the yield is a hint: correctness does not need it
    static void pause(boolean yields) {
        if (yields) {
            Thread.yield();
        } else {
            Thread.onSpinWait();
        }
    }
}
