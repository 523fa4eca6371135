package io.kvmessenger.transfer.agent;

import java.util.function.BooleanSupplier;

/**
 * Work that is done in duty cycles. It owns no thread: an {@link AgentRunner} gives it one, an {@link AgentInvoker}
 * runs it on the caller's.
 *
 * <p>One thread calls everything but {@link #wake}.
 */
public interface Agent {
    String roleName();

    /** Runs one duty cycle; returns the amount of work done, 0 for none. An error ends the agent. */
    int doWork();

    /**
     * Called after a duty cycle without work: returns when there may be work again, at the latest after a time that the
     * agent sets. May spin, yield or park.
     *
     * @param stopping returns true once the runner is stopping; the stopper calls {@link #wake} after setting it
     */
    void idle(BooleanSupplier stopping);

    /** Ends {@link #idle}, or its next call. Any thread. */
    void wake();

    /** Called once, after the last duty cycle; may still do work that takes bounded time. */
    void onClose();
}
