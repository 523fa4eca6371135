package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.agent.AgentInvoker;
import java.util.List;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;

/** The workers' duty cycles are called from outside, and nothing waits. Threading as {@link InvokedEngine}. */
final class InvokedWorkers implements WorkerRunner {
    private final List<Worker> workers;
    private final AgentInvoker invoker;
    private final Runnable onCompletion;

    /** @param onBug receives an error that ended a worker */
    InvokedWorkers(List<Worker> workers, Consumer<Throwable> onBug, Runnable onCompletion) {
        this.workers = List.copyOf(workers);
        this.onCompletion = onCompletion;
        invoker = new AgentInvoker(workers, onBug);
    }

    @Override
    public void start() {
        workers.forEach(Worker::rest);
    }

    /** Runs one duty cycle of every worker. */
    int invoke() {
        int work = 0;
        for (int i = 0; i < workers.size(); i++) {
            work += invoke(i);
        }
        return work;
    }

    /** Runs one duty cycle of one worker. */
    int invoke(int index) {
        boolean wasRunning = invoker.isRunning();
        int work = invoker.invoke(index);
        if (invoker.isRunning()) {
            workers.get(index).rest();
        } else if (wasRunning) {
            onCompletion.run(); // the error can be polled
        }
        return work;
    }

    @Override
    public void onCompletion() {
        onCompletion.run();
    }

    @Override
    public void advance() {}

    @Override
    public void await(long limitNs, BooleanSupplier pollable) {
        throw new AssertionError("an engine whose worker has no thread is polled, never waited for");
    }

    /** Does nothing: no thread waits. */
    @Override
    public void wake() {}

    /** Runs one duty cycle of each worker. The caller's wait must advance by it, or it would never end. */
    @Override
    public void yieldToWorkers() {
        if (invoke() == 0 && invoker.isRunning()) {
            throw new AssertionError("the workers are waited for and have nothing to do");
        }
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
