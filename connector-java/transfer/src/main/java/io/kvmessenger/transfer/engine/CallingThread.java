package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.agent.AgentInvoker;
import io.kvmessenger.transfer.spi.Poller;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.LongSupplier;

/**
 * Runs the workers' duty cycles on the polling thread, one worker after the other: one cycle each per poll, and as many
 * as needed in a wait. All workers share one poller.
 *
 * <p>Threading as {@link WorkerRunner}. Bytes move only while it is called.
 */
final class CallingThread implements WorkerRunner {
    /** Idle duty cycles between yields, since a yield is a system call too. */
    private static final int IDLE_CYCLES_PER_YIELD = 32;

    private final List<Worker> workers;
    private final AgentInvoker invoker;
    private final Poller poller;
    private final LongSupplier clock;
    private final boolean yields;
    private volatile boolean woken;
    /** The polling thread during a wait too short for the event loop, where waking the loop would not end the wait. */
    private volatile Thread parked;

    /**
     * @param workers all with the same poller
     * @param onBug receives an error that ended a worker
     */
    CallingThread(List<Worker> workers, LongSupplier clock, int coreCount, Consumer<Throwable> onBug) {
        this.workers = List.copyOf(workers);
        poller = workers.getFirst().poller();
        if (workers.stream().anyMatch(worker -> worker.poller() != poller)) {
            throw new IllegalArgumentException("one thread cannot wait by several pollers");
        }
        invoker = new AgentInvoker(workers, onBug);
        this.clock = clock;
        yields = coreCount < ThreadingMode.OWN_THREAD_CORES_MIN;
    }

    @Override
    public void start() {}

    /** Does nothing: the polling thread itself has just pushed the completion. */
    @Override
    public void onCompletion() {}

    @Override
    public void advance() {
        invoker.invoke();
    }

    @Override
    public void await(long limitNs, BooleanSupplier pollable) {
        if (limitNs < SPIN_WAIT_MIN_NS) { // shorter than the event loop can wait
            parked = Thread.currentThread();
            if (!woken && invoker.invoke() == 0 && !pollable.getAsBoolean()) {
                LockSupport.parkNanos(this, limitNs);
            }
            parked = null;
        } else {
            workUntil(clock.getAsLong() + limitNs, pollable);
        }
        woken = false;
    }

    private void workUntil(long deadlineNs, BooleanSupplier pollable) {
        long lastWorkNs = clock.getAsLong();
        int idleCycles = 0;
        while (invoker.isRunning() && !woken && !pollable.getAsBoolean()) {
            boolean idle = invoker.invoke() == 0;
            long nowNs = poller.nowNs();
            if (nowNs - deadlineNs >= 0) {
                return;
            }
            if (!idle) {
                lastWorkNs = nowNs;
            } else if (nowNs - lastWorkNs < SPIN_NS) {
                WorkerRunner.pause(yields && ++idleCycles % IDLE_CYCLES_PER_YIELD == 0);
            } else {
                park(deadlineNs - nowNs, pollable);
            }
        }
    }

    private void park(long limitNs, BooleanSupplier pollable) {
        long limitMillis = Math.min(Worker.PARK_MILLIS, TimeUnit.NANOSECONDS.toMillis(limitNs) + 1);
        try {
            workers.forEach(Worker::arm);
            if (invoker.invoke() == 0 && invoker.isRunning() && !woken && !pollable.getAsBoolean()) {
                poller.poll(sleepMillis((int) limitMillis));
            }
            if (invoker.isRunning()) {
                workers.forEach(Worker::disarm);
            }
        } catch (RuntimeException | Error bug) {
            invoker.fail(bug);
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
            LockSupport.unpark(parked);
        }
    }

    @Override
    public void yieldToWorkers() {
        invoker.invoke();
    }

    @Override
    public boolean isRunning() {
        return invoker.isRunning();
    }

    @Override
    public void end() {
        invoker.close();
    }
}
