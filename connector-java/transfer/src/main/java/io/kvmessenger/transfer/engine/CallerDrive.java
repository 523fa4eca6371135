package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Driver;
import io.kvmessenger.transfer.spi.Poller;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.LongSupplier;

/**
 * The polling thread turns the workers' duty cycles itself, one after the other: one of each in each poll, and as many as it
 * takes in a wait. All of them wait by one poller.
 *
 * <p>Threading as {@link Drive}. Bytes move only while it is called.
 */
final class CallerDrive implements Drive {
    /** A yield is a system call as well: so many turns without a find may cost one. */
    private static final int TURNS_PER_YIELD = 32;

    private final List<Worker> workers;
    private final Poller poller;
    private final LongSupplier clock;
    private final Consumer<Throwable> onBug;
    private final boolean yields;
    private volatile boolean running = true;
    private volatile boolean woken;

    /**
     * @param workers all with the same poller
     * @param onBug told of an error that ended a worker
     */
    CallerDrive(List<Worker> workers, LongSupplier clock, int coreCount, Consumer<Throwable> onBug) {
        this.workers = List.copyOf(workers);
        poller = workers.getFirst().poller();
        if (workers.stream().anyMatch(worker -> worker.poller() != poller)) {
            throw new IllegalArgumentException("one thread cannot wait by several pollers");
        }
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
            return turnAll();
        } catch (RuntimeException | Error bug) {
            fail(bug);
            return 0;
        }
    }

    private int turnAll() {
        int work = 0;
        for (int i = 0; i < workers.size(); i++) {
            work += workers.get(i).doWork();
        }
        return work;
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
            long nowNs = poller.nowNs();
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
            workers.forEach(Worker::arm);
            if (turnAll() == 0 && !woken && !pollable.getAsBoolean()) {
                poller.poll(sleepMillis((int) limitMillis));
            }
            workers.forEach(Worker::disarm);
        } catch (RuntimeException | Error bug) {
            fail(bug);
        }
    }

    private int sleepMillis(int limitMillis) {
        int millis = limitMillis;
        for (int i = 0; i < workers.size(); i++) {
            millis = workers.get(i).sleepMillis(millis);
        }
        return millis;
    }

    @Override
    public void wake() {
        if (!woken) {
            woken = true;
            workers.getFirst().wake();
        }
    }

    @Override
    public void yieldToWorkers() {
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
            Drive.end(workers);
        }
    }
}
