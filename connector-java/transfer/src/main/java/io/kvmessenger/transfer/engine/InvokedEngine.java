package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TransferEngine;

/**
 * An engine whose worker has no thread: the owner calls each of its duty cycles. The worker tells its poller when there is
 * something to do, and nothing in it parks, spins or sleeps.
 *
 * <p>One thread for the engine and its worker, or two that exclude each other.
 */
public final class InvokedEngine {
    private final TransferEngine engine;
    private final InvokedDrive drive;

    /** @param onCompletion run when there is something to poll, and there was nothing before */
    public InvokedEngine(EngineLimits limits, EnginePorts ports, Runnable onCompletion) {
        InvokedDrive[] made = new InvokedDrive[1];
        engine = new HostTransferEngine(
                limits, ports, (worker, onBug) -> made[0] = new InvokedDrive(worker, onBug, onCompletion));
        drive = made[0];
    }

    public TransferEngine engine() {
        return engine;
    }

    /** One duty cycle of the worker; returns how much was done. With 0, nothing is left to do until the poller is woken. */
    public int doWork() {
        return drive.turn();
    }
}
