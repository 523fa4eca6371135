package io.kvmessenger.transfer.agent;

import java.time.Duration;
import java.util.function.Consumer;

/**
 * Runs an agent's duty cycles on a daemon thread of its own, until it is stopped or an error ends the agent.
 *
 * <p>One thread starts it; any thread may stop it, wait for it or query its state.
 */
public final class AgentRunner {
    private final Agent agent;
    private final Consumer<Throwable> onError;
    private final Thread thread;
    private volatile boolean stopping;

    /** @param onError receives, on the agent's thread and before its {@link Agent#onClose}, the error that ended it */
    public AgentRunner(Agent agent, Consumer<Throwable> onError) {
        this.agent = agent;
        this.onError = onError;
        thread = Thread.ofPlatform().daemon().name(agent.roleName()).unstarted(this::run);
    }

    /** Starts the thread. If the system cannot create one, this throws and the agent is not closed. */
    public void start() {
        thread.start();
    }

    private void run() {
        try {
            while (!stopping) {
                if (agent.doWork() == 0) {
                    agent.idle(this::isStopping);
                }
            }
        } catch (Throwable error) {
            onError.accept(error);
        } finally {
            agent.onClose();
        }
    }

    public boolean isStopping() {
        return stopping;
    }

    /** Whether the duty cycles have ever begun. */
    public boolean hasStarted() {
        return thread.getState() != Thread.State.NEW;
    }

    /** Whether the duty cycles run, or the agent is closing. */
    public boolean isAlive() {
        return thread.isAlive();
    }

    /** Ends the duty cycles after the current one; does not wait. */
    public void stop() {
        stopping = true;
        agent.wake();
    }

    /**
     * Waits until the agent is closed. An interrupt does not shorten the wait; the flag is restored afterwards.
     *
     * @return false when the limit passed first
     */
    public boolean join(Duration limit) {
        boolean interrupted = false;
        long startedNs = System.nanoTime();
        try {
            while (true) {
                try {
                    return !hasStarted() || thread.join(limit.minusNanos(System.nanoTime() - startedNs));
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
