package io.kvmessenger.connector;

import io.kvmessenger.hooks.WatchPeriod;
import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.agent.Agent;
import io.kvmessenger.transfer.agent.AgentRunner;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.IntSupplier;

/**
 * The messenger as an agent on a thread of its own. It drains the inbox, runs the messenger's duty cycle, and when idle
 * waits in the transfer engine, which it polls and in the end closes. While a forward pass is being sent it polls the
 * layer counter at the interval of {@link WatchPeriod}. An exception ends neither the agent nor the rest of a duty
 * cycle.
 *
 * <p>Any thread may start it once, stop it, and query its health.
 */
final class MessengerAgent implements Agent {
    /** How long a duty cycle may take on a busy machine; beyond it {@code /health} reports the messenger as stuck. */
    static final long STUCK_LIMIT_NS = 5_000_000_000L;

    /** Pause after a fault, and between duty cycles after the end of the transfer engine, which cannot wait then. */
    private static final long PAUSE_NS = 10_000_000;

    private final TransferEngine transfer;
    private final Messenger messenger;
    private final Inbox inbox;
    private final NanoClock clock;
    private final Consumer<Throwable> onFault;
    private final AgentRunner runner;
    private final WatchPeriod watchPeriod;
    private volatile boolean transferClosed;

    /** End of the last duty cycle without a fault: one that failed is no sign of health. */
    private volatile long lastSoundNs;
    /** The last fault of a duty cycle; never cleared, since only its age matters. */
    private volatile String lastFault = "";

    MessengerAgent(
            TransferEngine transfer, Messenger messenger, Inbox inbox, NanoClock clock, Consumer<Throwable> onFault) {
        this.transfer = transfer;
        this.messenger = messenger;
        this.inbox = inbox;
        this.clock = clock;
        this.onFault = onFault;
        runner = new AgentRunner(this, this::record);
        watchPeriod = new WatchPeriod(clock.nowNs());
    }

    void start() {
        lastSoundNs = clock.nowNs();
        runner.start();
    }

    /**
     * Why the messenger does not work, for {@code /health}; a duty cycle is due each {@code heartbeatNs}. Any thread.
     */
    Optional<String> healthProblem(long heartbeatNs) {
        Optional<String> failure = death().or(messenger::failure);
        if (failure.isPresent()) {
            return failure;
        }
        long sinceNs = clock.nowNs() - lastSoundNs;
        return sinceNs > heartbeatNs + STUCK_LIMIT_NS
                ? Optional.of("the messenger's thread has been stuck for " + sinceNs / 1_000_000 + " ms"
                        + (lastFault.isEmpty() ? "" : ", its last fault was " + lastFault))
                : Optional.empty();
    }

    /** Why the messenger can never move KV again. Any thread. */
    Optional<String> death() {
        return runner.isAlive() || runner.isStopping()
                ? messenger.death()
                : Optional.of("the messenger's thread has ended (" + lastFault + "): restart this engine");
    }

    /** Ends the duty cycles; when it returns true nothing reads or writes pages any more. */
    boolean stop(Duration limit) {
        runner.stop();
        runner.join(limit);
        return transferClosed;
    }

    @Override
    public String roleName() {
        return "kv-messenger";
    }

    @Override
    public int doWork() {
        int inputs = guarded(this::takeInputs);
        int work = guarded(this::runMessenger);
        if (inputs < 0 || work < 0) { // a bug must neither end the duty cycles nor make them spin
            LockSupport.parkNanos(PAUSE_NS);
            return 1;
        }
        long nowNs = clock.nowNs();
        lastSoundNs = nowNs;
        if (inputs + work > 0) {
            watchPeriod.onWork(nowNs);
        }
        return inputs + work;
    }

    @Override
    public void idle(BooleanSupplier stopping) {
        guarded(this::await);
    }

    @Override
    public void wake() {
        transfer.wake();
    }

    @Override
    public void onClose() {
        transfer.close();
        transferClosed = true;
    }

    /** The step's result, or -1 when it has thrown. */
    private int guarded(IntSupplier step) {
        try {
            return step.getAsInt();
        } catch (Throwable fault) {
            record(fault);
            return -1;
        }
    }

    private void record(Throwable fault) {
        try {
            lastFault = fault.toString();
            onFault.accept(fault);
        } catch (Throwable second) { // out of memory, most likely: the thread must continue all the same
            lastFault = "a fault that could not be logged";
        }
    }

    private int takeInputs() {
        return inbox.drainTo(messenger);
    }

    private int runMessenger() {
        return messenger.doWork();
    }

    private int await() {
        if (messenger.death().isPresent()) {
            LockSupport.parkNanos(PAUSE_NS);
        } else if (messenger.watching()) {
            watch();
        } else {
            transfer.await(messenger.nextDeadlineNs() - clock.nowNs());
        }
        return 0;
    }

    private void watch() {
        long begunNs = clock.nowNs();
        long periodNs = watchPeriod.periodNs(begunNs);
        transfer.await(periodNs);
        long nowNs = clock.nowNs();
        if (nowNs - begunNs < periodNs) { // the transfer engine moved bytes, or there is something to poll
            watchPeriod.onWork(nowNs);
        }
    }
}
