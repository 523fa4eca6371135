package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Driver;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.LongSupplier;

/**
 * A thread for each worker alone. With nothing to do it spins for a while, then sleeps in the event loop.
 *
 * <p>Threading as {@link Drive}.
 */
final class ThreadDrive implements Drive {
    private static final long CLOSE_LIMIT_MILLIS = 10_000;
    private static final long LOOK_NS = 20_000;

    private final List<Turning> turning = new ArrayList<>();
    private final LongSupplier clock;
    private final Consumer<Throwable> onBug;
    private final boolean yields;
    private volatile boolean running = true;
    private volatile boolean woken;
    /** The polling thread while it waits; null otherwise. */
    private volatile Thread waiting;

    /**
     * @param name of the first worker's thread; that of each other has its number as well
     * @param onBug told, on the worker's thread, of an error that ended it
     */
    ThreadDrive(String name, List<Worker> workers, LongSupplier clock, int coreCount, Consumer<Throwable> onBug) {
        this.clock = clock;
        this.onBug = onBug;
        yields = coreCount < Driver.OWN_THREAD_CORES_MIN;
        for (Worker worker : workers) {
            int number = turning.size() + 1;
            turning.add(new Turning(worker, number == 1 ? name : name + "-" + number));
        }
    }

    @Override
    public void start() {
        try {
            turning.forEach(each -> each.thread.start());
        } catch (RuntimeException | Error e) {
            end();
            Drive.end(turning.stream()
                    .filter(each -> each.thread.getState() == Thread.State.NEW)
                    .map(each -> each.worker)
                    .toList());
            throw e;
        }
    }

    /** One worker and its thread. */
    private final class Turning implements Runnable {
        final Worker worker;
        final Thread thread;

        Turning(Worker worker, String name) {
            this.worker = worker;
            thread = Thread.ofPlatform().daemon().name(name).unstarted(this);
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
                        worker.park(Worker.PARK_MILLIS, ThreadDrive.this::isStopping);
                    }
                }
            } catch (RuntimeException | Error bug) {
                onBug.accept(bug);
            } finally {
                stop();
                worker.end();
            }
        }
    }

    private boolean isStopping() {
        return !running;
    }

    private void stop() {
        running = false;
        turning.forEach(each -> each.worker.wake());
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
    public void yieldToWorkers() {
        LockSupport.parkNanos(LOOK_NS);
    }

    @Override
    public boolean isRunning() {
        for (Turning each : turning) {
            if (each.thread.isAlive()) {
                return true;
            }
        }
        return false;
    }

    @Override
    public void end() {
        stop();
        boolean interrupted = false;
        for (Turning each : turning) {
            interrupted |= join(each.thread);
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** Returns whether this thread was interrupted meanwhile. */
    private static boolean join(Thread thread) {
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
        return interrupted;
    }
}
