package io.kvmessenger.transfer.engine;

import java.util.List;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;

/**
 * Runs the workers' duty cycles and parks the polling thread. An error that ends one worker ends them all.
 *
 * <p>For the polling thread, except {@link #wake}.
 */
interface Drive {
    /** Idle spin time: longer than one small-write round trip, so latency-bound traffic never parks. */
    long SPIN_NS = 50_000;

    /** Below this the caller polls something else too: it parks at once instead of spinning. */
    long SPIN_WAIT_MIN_NS = 1_000_000;

    /** Lets the workers begin. When it throws, all of them have ended. */
    void start();

    /** Any worker: there is something of its to poll, and there was nothing before. */
    void onCompletion();

    /** Does of the workers' work what the polling thread has to do. */
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

    /** Makes the one that turns an engine's workers. */
    interface Maker {
        /** @param onBug told of an error that ended a worker, on that worker's thread */
        Drive make(List<Worker> workers, Consumer<Throwable> onBug);
    }

    /** Ends all, also when one of them cannot end properly; that is thrown afterwards. */
    static void end(List<Worker> workers) {
        Throwable first = null;
        for (Worker worker : workers) {
            try {
                worker.end();
            } catch (RuntimeException | Error error) {
                first = first == null ? error : first;
            }
        }
        if (first instanceof RuntimeException exception) {
            throw exception;
        }
        if (first instanceof Error error) {
            throw error;
        }
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
