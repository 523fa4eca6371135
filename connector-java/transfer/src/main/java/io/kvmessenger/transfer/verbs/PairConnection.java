package io.kvmessenger.transfer.verbs;

import java.util.concurrent.atomic.AtomicReference;

/**
 * Connects one queue pair with the peer's, outside the worker: the driver may resolve the hardware address of the
 * peer's port, which blocks the caller for up to a second if there is no answer.
 *
 * <p>Run by one of the device's threads; created, polled and abandoned by the worker, which never waits for it. Does not
 * touch the queue pair after it was abandoned, except for what it was left to do.
 */
final class PairConnection implements Runnable {
    private enum State {
        WAITING,
        RUNNING,
        ENDED,
        ABANDONED
    }

    private final Runnable steps;
    private final AtomicReference<State> state = new AtomicReference<>(State.WAITING);
    private volatile boolean made;
    private volatile Throwable refusal;
    /** What the thread does once the driver has returned; written before the state {@code ABANDONED}. */
    private Runnable afterwards;

    PairConnection(Runnable steps) {
        this.steps = steps;
    }

    @Override
    public void run() {
        if (!state.compareAndSet(State.WAITING, State.RUNNING)) {
            return;
        }
        try {
            steps.run();
            made = true;
        } catch (RuntimeException | Error e) {
            refusal = e;
        }
        if (!state.compareAndSet(State.RUNNING, State.ENDED)) {
            close();
        }
    }

    private void close() {
        try {
            afterwards.run();
        } catch (RuntimeException | Error e) {
            refusal = e; // it stays open, so that nothing is concluded from its end
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

    /**
     * Ends the attempt without waiting for it.
     *
     * @param closing closes the queue pair: run by the connection's thread if the driver is still at work on it
     * @return whether the driver is not at work on the queue pair, so that the caller closes it
     */
    boolean abandon(Runnable closing) {
        afterwards = closing;
        return state.compareAndSet(State.WAITING, State.ABANDONED)
                || !state.compareAndSet(State.RUNNING, State.ABANDONED);
    }
}
