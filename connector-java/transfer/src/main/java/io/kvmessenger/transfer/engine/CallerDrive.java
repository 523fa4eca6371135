package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Driver;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.LongSupplier;

/**
 * The polling thread turns the worker's duty cycle itself: one cycle in each poll, and as many as it takes in a wait.
 *
 * <p>Threading as {@link Drive}. Bytes move only while it is called.
 */
final class CallerDrive implements Drive {
    /** A yield is a system call as well: so many turns without a find may cost one. */
    private static final int TURNS_PER_YIELD = 32;

    private final Worker worker;
    private final LongSupplier clock;
    private final Consumer<Throwable> onBug;
    private final boolean yields;
    private volatile boolean running = true;
    private volatile boolean woken;

    /** @param onBug told of an error that ended the worker */
    CallerDrive(Worker worker, LongSupplier clock, int coreCount, Consumer<Throwable> onBug) {
        this.worker = worker;
        this.clock = clock;
        this.onBug = onBug;
        yields = coreCount < Driver.OWN_THREAD_CORES_MIN;
    }

    @Override
    public void start() {}

    /** Nothing: the polling thread has just pushed it itself. */
    @Override
    public void onCompletion() {}

    @Override
    public void advance() {
        turn();
    }

    private int turn() {
        if (!running) {
            return 0;
        }
        try {
            return worker.doWork();
        } catch (RuntimeException | Error bug) {
            fail(bug);
            return 0;
        }
    }

    private void fail(Throwable bug) {
        onBug.accept(bug);
        end();
    }

    @Override
    public void await(long limitNs, BooleanSupplier pollable) {
        if (limitNs < SPIN_WAIT_MIN_NS) { // and the event loop could not wait for less
            if (!woken && turn() == 0 && !pollable.getAsBoolean()) {
                LockSupport.parkNanos(this, limitNs);
            }
        } else {
            turnUntil(clock.getAsLong() + limitNs, pollable);
        }
        woken = false;
    }

    private void turnUntil(long deadlineNs, BooleanSupplier pollable) {
        long lastWorkNs = clock.getAsLong();
        int idleTurns = 0;
        while (running && !woken && !pollable.getAsBoolean()) {
            boolean idle = turn() == 0;
            long nowNs = worker.nowNs();
            if (nowNs - deadlineNs >= 0) {
                return;
            }
            if (!idle) {
                lastWorkNs = nowNs;
            } else if (nowNs - lastWorkNs < SPIN_NS) {
                Drive.pause(yields && ++idleTurns % TURNS_PER_YIELD == 0);
            } else {
                park(deadlineNs - nowNs, pollable);
            }
        }
    }

    private void park(long limitNs, BooleanSupplier pollable) {
        long limitMillis = Math.min(Worker.PARK_MILLIS, TimeUnit.NANOSECONDS.toMillis(limitNs) + 1);
        try {
            worker.park((int) limitMillis, () -> woken || pollable.getAsBoolean());
        } catch (RuntimeException | Error bug) {
            fail(bug);
        }
    }

    @Override
    public void wake() {
        if (!woken) {
            woken = true;
            worker.wake();
        }
    }

    @Override
    public void yieldToWorker() {
        turn();
    }

    @Override
    public boolean isRunning() {
        return running;
    }

    @Override
    public void end() {
        if (running) {
            running = false;
            worker.end();
        }
    }
}
