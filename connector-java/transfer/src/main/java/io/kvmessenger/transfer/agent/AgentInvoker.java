package io.kvmessenger.transfer.agent;

import java.util.List;
import java.util.function.Consumer;

/**
 * Runs the duty cycles of agents on the thread that calls it. An error of one ends and closes all of them.
 *
 * <p>One thread; {@link #isRunning} from any.
 */
public final class AgentInvoker {
    private final List<? extends Agent> agents;
    private final Consumer<Throwable> onError;
    private volatile boolean running = true;

    /** @param onError gets the error that ended an agent, before any of them is closed */
    public AgentInvoker(List<? extends Agent> agents, Consumer<Throwable> onError) {
        this.agents = List.copyOf(agents);
        this.onError = onError;
    }

    /** One duty cycle of each agent, in their order; returns how much was done, 0 also when they have ended. */
    public int invoke() {
        int work = 0;
        for (int i = 0; i < agents.size(); i++) {
            work += invoke(i);
        }
        return work;
    }

    /** One duty cycle of one agent. */
    public int invoke(int index) {
        if (!running) {
            return 0;
        }
        try {
            return agents.get(index).doWork();
        } catch (RuntimeException | Error error) {
            fail(error);
            return 0;
        }
    }

    /** Ends all agents for an error that the caller found beside their duty cycles. */
    public void fail(Throwable error) {
        onError.accept(error);
        close();
    }

    /** False when no duty cycle is run any more. */
    public boolean isRunning() {
        return running;
    }

    /** Ends and closes all agents, also when one of them throws; that is thrown afterwards. */
    public void close() {
        if (running) {
            running = false;
            closeAll(agents);
        }
    }

    /** Closes agents that no thread runs. All of them are closed, also when one throws; the first exception is thrown afterwards. */
    public static void closeAll(List<? extends Agent> agents) {
        Throwable first = null;
        for (Agent agent : agents) {
            try {
                agent.onClose();
            } catch (RuntimeException | Error error) {
                first = first == null ? error : first;
            }
        }
        if (first instanceof RuntimeException exception) {
            throw exception;
        }
        if (first instanceof Error error) {
            throw error;
        }
    }
}
