package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.agent.Agent;
import io.kvmessenger.transfer.agent.AgentInvoker;
import io.kvmessenger.transfer.agent.AgentRunner;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.LongSupplier;

/**
 * Runs each worker on a thread of its own, which spins for a while when idle, then sleeps in its poller.
 *
 * <p>Threading as {@link WorkerRunner}.
 */
final class OwnThreads implements WorkerRunner {
    private static final Duration CLOSE_LIMIT = Duration.ofSeconds(10);
    private static final long LOOK_NS = 20_000;

    private final List<Worker> workers;
    private final List<AgentRunner> runners = new ArrayList<>();
    private final LongSupplier clock;
    private final Consumer<Throwable> onBug;
    private final boolean yields;
    private volatile boolean woken;
    /** The polling thread while it waits; null otherwise. */
    private volatile Thread waiting;

    /** @param onBug receives an error that ended a worker, on its thread */
    OwnThreads(List<Worker> workers, LongSupplier clock, int coreCount, Consumer<Throwable> onBug) {
        this.workers = List.copyOf(workers);
        this.clock = clock;
        this.onBug = onBug;
        yields = coreCount < ThreadingMode.OWN_THREAD_CORES_MIN;
        workers.forEach(worker -> runners.add(new AgentRunner(new Spinning(worker), this::fail)));
    }

    @Override
    public void start() {
        try {
            runners.forEach(AgentRunner::start);
        } catch (RuntimeException | Error e) {
            end();
            closeUnstarted();
            throw e;
        }
    }

    private void closeUnstarted() {
        List<Worker> unstarted = new ArrayList<>();
        for (int i = 0; i < workers.size(); i++) {
            if (!runners.get(i).hasStarted()) {
                unstarted.add(workers.get(i));
            }
        }
        AgentInvoker.closeAll(unstarted);
    }

    /** A worker that spins before it sleeps. */
    private final class Spinning implements Agent {
        private final Worker worker;
        private long lastWorkNs;

        Spinning(Worker worker) {
            this.worker = worker;
            lastWorkNs = worker.nowNs();
        }

        @Override
        public String roleName() {
            return worker.roleName();
        }

        @Override
        public int doWork() {
            int work = worker.doWork();
            if (work > 0) {
                lastWorkNs = worker.nowNs();
            }
            return work;
        }

        @Override
        public void idle(BooleanSupplier stopping) {
            if (worker.nowNs() - lastWorkNs < SPIN_NS) {
                WorkerRunner.pause(yields);
            } else {
                worker.idle(stopping);
            }
        }

        @Override
        public void wake() {
            worker.wake();
        }

        @Override
        public void onClose() {
            worker.onClose();
        }
    }

    private void fail(Throwable bug) {
        try {
            onBug.accept(bug);
        } finally {
            stop();
        }
    }

    private void stop() {
        runners.forEach(AgentRunner::stop);
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
            WorkerRunner.pause(yields);
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
        for (AgentRunner runner : runners) {
            if (runner.isAlive()) {
                return true;
            }
        }
        return false;
    }

    @Override
    public void end() {
        stop();
        for (int i = 0; i < runners.size(); i++) {
            if (!runners.get(i).join(CLOSE_LIMIT)) {
                throw new AssertionError("the worker " + workers.get(i).roleName() + " did not end");
            }
        }
    }
}
