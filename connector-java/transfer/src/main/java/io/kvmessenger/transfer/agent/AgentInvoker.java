package io.kvmessenger.transfer.agent;

import java.util.List;
import java.util.function.Consumer;

/**
 * Runs the duty cycles of agents on the calling thread. An error of one agent ends and closes all of them.
 *
 * <p>One thread; {@link #isRunning} from any.
 */
public final class AgentInvoker {
    private final List<? extends Agent> agents;
    private final Consumer<Throwable> onError;
    private volatile boolean running = true;

    /** @param onError receives the error that ended an agent, before any of them is closed */
    public AgentInvoker(List<? extends Agent> agents, Consumer<Throwable> onError) {
        this.agents = List.copyOf(agents);
        this.onError = onError;
    }

    /** Runs one duty cycle of each agent, in order; returns the amount of work done, 0 also after they have ended. */
    public int invoke() {
        int work = 0;
        for (int i = 0; i < agents.size(); i++) {
            work += invoke(i);
        }
        return work;
    }

    /** Runs one duty cycle of one agent. */
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

    /** Ends all agents because of an error that the caller met outside their duty cycles. */
    public void fail(Throwable error) {
        onError.accept(error);
        close();
    }

    /** False when no duty cycle will run any more. */
    public boolean isRunning() {
        return running;
    }

    /** Ends and closes all agents, even if one of them throws; the exception is rethrown afterwards. */
    public void close() {
        if (running) {
            running = false;
            closeAll(agents);
        }
    }

    /** Closes agents that no thread runs: all of them, even if one throws; the first exception is then rethrown. */
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
