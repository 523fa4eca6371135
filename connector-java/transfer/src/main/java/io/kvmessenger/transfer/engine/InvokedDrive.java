package io.kvmessenger.transfer.engine;

import java.util.function.BooleanSupplier;
import java.util.function.Consumer;

/** The worker's duty cycle is called from outside, and nothing waits. Threading as {@link InvokedEngine}. */
final class InvokedDrive implements Drive {
    private final Worker worker;
    private final Consumer<Throwable> onBug;
    private final Runnable onCompletion;
    private boolean running = true;

    /** @param onBug told of an error that ended the worker */
    InvokedDrive(Worker worker, Consumer<Throwable> onBug, Runnable onCompletion) {
        this.worker = worker;
        this.onBug = onBug;
        this.onCompletion = onCompletion;
    }

    @Override
    public void start() {
        worker.rest();
    }

    int turn() {
        if (!running) {
            return 0;
        }
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

    /** One duty cycle, which must bring the caller further: it would wait for ever otherwise. */
    @Override
    public void yieldToWorker() {
        if (turn() == 0 && running) {
            throw new AssertionError("the worker is waited for and has nothing to do");
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
            worker.end();
        }
    }
}
