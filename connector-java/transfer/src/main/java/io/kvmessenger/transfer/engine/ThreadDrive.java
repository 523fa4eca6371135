package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Driver;
import java.time.Duration;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.LongSupplier;

/**
 * A thread for the worker alone. With nothing to do it spins for a while, then sleeps in the event loop.
 *
 * <p>Threading as {@link Drive}.
 */
final class ThreadDrive implements Drive, Runnable {
    private static final long CLOSE_LIMIT_MILLIS = 10_000;
    private static final long LOOK_NS = 20_000;

    private final Worker worker;
    private final LongSupplier clock;
    private final Consumer<Throwable> onBug;
    private final boolean yields;
    private final Thread thread;
    private volatile boolean running = true;
    private volatile boolean woken;
    /** The polling thread while it waits; null otherwise. */
    private volatile Thread waiting;

    /** @param onBug told, on the worker's thread, of an error that ended it */
    ThreadDrive(String name, Worker worker, LongSupplier clock, int coreCount, Consumer<Throwable> onBug) {
        this.worker = worker;
        this.clock = clock;
        this.onBug = onBug;
        yields = coreCount < Driver.OWN_THREAD_CORES_MIN;
        thread = Thread.ofPlatform().daemon().name(name).unstarted(this);
    }

    @Override
    public void start() {
        thread.start();
    }

    @Override
    public void run() {
        try {
            long lastWorkNs = worker.nowNs();
            while (running) {
                if (worker.doWork() > 0) {
                    lastWorkNs = worker.nowNs();
                } else if (worker.nowNs() - lastWorkNs < SPIN_NS) {
                    Drive.pause(yields);
                } else {
                    worker.park(Worker.PARK_MILLIS, this::isStopping);
                }
            }
        } catch (RuntimeException | Error bug) {
            onBug.accept(bug);
        } finally {
            running = false;
            worker.end();
        }
    }

    private boolean isStopping() {
        return !running;
    }

    @Override
    public void onCompletion() {
        wake();
    }

    @Override
    public void advance() {}

    @Override
    public void await(long limitNs, BooleanSupplier pollable) {
        long spinNs = limitNs < SPIN_WAIT_MIN_NS ? 0 : SPIN_NS;
        for (long startedNs = clock.getAsLong();
                clock.getAsLong() - startedNs < spinNs && !woken && !pollable.getAsBoolean(); ) {
            Drive.pause(yields);
        }
        waiting = Thread.currentThread();
        if (!woken && !pollable.getAsBoolean()) {
            LockSupport.parkNanos(this, limitNs);
        }
        waiting = null;
        woken = false;
    }

    @Override
    public void wake() {
        if (!woken) {
            woken = true;
            LockSupport.unpark(waiting);
        }
    }

    @Override
    public void yieldToWorker() {
        LockSupport.parkNanos(LOOK_NS);
    }

    @Override
    public boolean isRunning() {
        return thread.isAlive();
    }

    @Override
    public void end() {
        running = false;
        worker.wake();
        boolean interrupted = false;
        while (thread.isAlive()) {
            try {
                if (!thread.join(Duration.ofMillis(CLOSE_LIMIT_MILLIS))) {
                    throw new AssertionError("the worker " + thread.getName() + " did not end");
                }
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
