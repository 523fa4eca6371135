package io.kvmessenger.transfer.agent;

import java.util.function.BooleanSupplier;

/**
 * Work that is done in duty cycles. It owns no thread: an {@link AgentRunner} gives it one, an {@link AgentInvoker} lends it the
 * caller's.
 *
 * <p>One thread calls everything but {@link #wake}.
 */
public interface Agent {
    /** Names its thread. */
    String roleName();

    /** One duty cycle; returns how much was done, 0 for nothing. An error ends the agent. */
    int doWork();

    /**
     * After a duty cycle that found nothing: returns when there may be work again, at the latest after a time that the agent
     * sets. May spin, yield or park.
     *
     * @param stopping whether no duty cycle will follow; what sets it calls {@link #wake} afterwards
     */
    void idle(BooleanSupplier stopping);

    /** Any thread: ends {@link #idle}, or the next one. */
    void wake();

    /** Called once, after the last duty cycle; it may still do what takes a bounded time. */
    void onClose();
}
