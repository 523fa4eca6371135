package io.kvmessenger.transfer.verbs;

/**
 * Connects one queue pair with the peer's, outside the worker: the driver may resolve the hardware address of the
 * peer's port, which blocks the caller for up to a second if there is no answer.
 *
 * <p>Run by one of the device's threads; created and polled by the worker. Does not touch the queue pair after it was
 * abandoned.
 */
final class PairConnection implements Runnable {
    private final Runnable steps;
    private volatile boolean made;
    private volatile Throwable refusal;
    /** Guarded by this. */
    private boolean abandoned;

    PairConnection(Runnable steps) {
        this.steps = steps;
    }

    @Override
    public synchronized void run() {
        if (abandoned) {
            return;
        }
        try {
            steps.run();
            made = true;
        } catch (RuntimeException | Error e) {
            refusal = e;
        }
    }

    /**
     * Whether the queue pair is connected.
     *
     * @throws IllegalStateException when the device has refused
     */
    boolean isMade() {
        if (refusal != null) {
            throw new IllegalStateException(String.valueOf(refusal.getMessage()), refusal);
        }
        return made;
    }

    /** Permits closing the queue pair afterwards; blocks while the driver waits for an answer. */
    synchronized void abandon() {
        abandoned = true;
    }
}
