package io.kvmessenger.transfer.engine;

import java.util.List;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;

/** The workers' duty cycles are called from outside, and nothing waits. Threading as {@link InvokedEngine}. */
final class InvokedDrive implements Drive {
    private final List<Worker> workers;
    private final Consumer<Throwable> onBug;
    private final Runnable onCompletion;
    private boolean running = true;

    /** @param onBug told of an error that ended a worker */
    InvokedDrive(List<Worker> workers, Consumer<Throwable> onBug, Runnable onCompletion) {
        this.workers = List.copyOf(workers);
        this.onBug = onBug;
        this.onCompletion = onCompletion;
    }

    @Override
    public void start() {
        workers.forEach(Worker::rest);
    }

    /** One duty cycle of every worker. */
    int turn() {
        int work = 0;
        for (int i = 0; i < workers.size(); i++) {
            work += turn(i);
        }
        return work;
    }

    /** One duty cycle of one worker. */
    int turn(int index) {
        if (!running) {
            return 0;
        }
        Worker worker = workers.get(index);
        try {
            int work = worker.doWork();
            worker.rest();
            return work;
        } catch (RuntimeException | Error bug) {
            end();
            onBug.accept(bug);
            onCompletion.run();
            return 0;
        }
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

    /** Nothing waits. */
    @Override
    public void wake() {}

    /** One duty cycle of each, which must bring the caller further: it would wait for ever otherwise. */
    @Override
    public void yieldToWorkers() {
        if (turn() == 0 && running) {
            throw new AssertionError("the workers are waited for and have nothing to do");
        }
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
