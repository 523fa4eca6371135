package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TransferEngine;

/**
 * An engine whose workers have no thread: the owner calls each duty cycle. A worker wakes its poller when there is
 * something to do; nothing here parks, spins or sleeps.
 *
 * <p>One thread for the engine and its workers, or several under mutual exclusion.
 */
public final class InvokedEngine {
    private final TransferEngine engine;
    private final InvokedWorkers workers;

    /** @param onCompletion run when there is something to poll, and was nothing before */
    public InvokedEngine(EngineLimits limits, EnginePorts ports, Runnable onCompletion) {
        InvokedWorkers[] made = new InvokedWorkers[1];
        engine = new HostTransferEngine(
                limits, ports, (run, onBug) -> made[0] = new InvokedWorkers(run, onBug, onCompletion));
        workers = made[0];
    }

    public TransferEngine engine() {
        return engine;
    }

    /** Runs one duty cycle of each worker; returns the work done. After 0, nothing is to do until a poller is woken. */
    public int doWork() {
        return workers.invoke();
    }

    /** Runs one duty cycle of one worker. */
    public int doWork(int worker) {
        return workers.invoke(worker);
    }
}
