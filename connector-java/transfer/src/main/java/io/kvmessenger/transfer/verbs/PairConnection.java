package io.kvmessenger.transfer.verbs;

/**
 * Connects one queue pair with the peer's, beside the worker: the device's driver may ask the network for the hardware address of
 * the peer's port, and then keeps the caller until it has an answer, for up to a second where there is none.
 *
 * <p>Run by one of the device's threads, made and looked at by the worker. Does not touch the queue pair once it was abandoned.
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

    /** The queue pair may be closed afterwards; where the driver waits for an answer, so does the caller. */
    synchronized void abandon() {
        abandoned = true;
    }
}
