package io.kvmessenger.connector;

import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.transfer.TransferEngine;
import java.util.Optional;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import java.util.function.IntSupplier;

/**
 * The messenger's one thread: turns its duty cycle while there is work, waits until a deadline or a wake-up when there is
 * none, and looks at the layer counter every {@link #WATCH_PERIOD_NS} while a forward pass is being sent. It polls the
 * transfer engine, so it waits there, and closes it at its end. An exception ends neither the thread nor the rest of a turn.
 */
final class AgentThread {
    /** How late a finished layer may be noticed; a spinning watcher would take a core from the forward pass. */
    static final long WATCH_PERIOD_NS = 50_000;
    /** A turn may take that long on a crowded machine; beyond it {@code /health} says that the messenger is stuck. */
    static final long STUCK_LIMIT_NS = 5_000_000_000L;

    /** After a fault, and between the turns of a messenger whose transfer engine has ended and cannot be waited for. */
    private static final long PAUSE_NS = 10_000_000;

    private final TransferEngine transfer;
    private final NanoClock clock;
    private final Consumer<Throwable> onFault;
    private volatile Thread thread;
    private volatile boolean stopping;
    /** The transfer engine is closed. */
    private volatile boolean ended;

    /** When a turn without a fault has ended: turns that fail are no sign of health. */
    private volatile long lastSoundNs;
    /** Of the last turn that failed; kept, as only its age is judged. */
    private volatile String lastFault = "";

    private Inbox inbox;
    private volatile Messenger messenger;

    AgentThread(TransferEngine transfer, NanoClock clock, Consumer<Throwable> onFault) {
        this.transfer = transfer;
        this.clock = clock;
        this.onFault = onFault;
    }

    void start(Messenger messenger, Inbox inbox) {
        this.messenger = messenger;
        this.inbox = inbox;
        Thread starting = Thread.ofPlatform().name("kv-messenger").daemon().unstarted(this::run);
        lastSoundNs = clock.nowNs();
        thread = starting;
        starting.start();
    }

    /** Why the messenger does not work, for {@code /health}; it turns at least once in {@code heartbeatNs}. Any thread. */
    Optional<String> healthProblem(long heartbeatNs) {
        Optional<String> death = death();
        if (death.isPresent()) {
            return death;
        }
        long sinceNs = clock.nowNs() - lastSoundNs;
        return sinceNs > heartbeatNs + STUCK_LIMIT_NS
                ? Optional.of("the messenger's thread has been stuck for " + sinceNs / 1_000_000 + " ms"
                        + (lastFault.isEmpty() ? "" : ", its last fault was " + lastFault))
                : Optional.empty();
    }

    /** Why the messenger moves no KV any more and never will again. Any thread. */
    Optional<String> death() {
        return thread.isAlive() || stopping
                ? messenger.death()
                : Optional.of("the messenger's thread has ended (" + lastFault + "): restart this engine");
    }

    /** Ends the duty cycle; when it returns true nothing reads or writes pages any more. */
    boolean stop(long limitMillis) {
        stopping = true;
        transfer.wake();
        try {
            thread.join(limitMillis);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        return ended;
    }

    private void run() {
        while (!stopping) {
            int inputs = guarded(this::takeInputs);
            int work = guarded(this::turn);
            if (inputs < 0 || work < 0) { // a bug must neither end the duty cycle nor spin it
                LockSupport.parkNanos(PAUSE_NS);
            } else {
                lastSoundNs = clock.nowNs();
                if (inputs + work == 0) {
                    guarded(this::await);
                }
            }
        }
        transfer.close();
        ended = true;
    }

    /** What the step says, or -1 when it has thrown. */
    private int guarded(IntSupplier step) {
        try {
            return step.getAsInt();
        } catch (Throwable fault) {
            tell(fault);
            return -1;
        }
    }

    private void tell(Throwable fault) {
        try {
            lastFault = fault.toString();
            onFault.accept(fault);
        } catch (Throwable second) { // out of memory, most likely: the thread must go on all the same
            lastFault = "a fault that could not be told";
        }
    }

    private int takeInputs() {
        return inbox.drainTo(messenger);
    }

    private int turn() {
        return messenger.doWork();
    }

    private int await() {
        if (messenger.death().isPresent()) {
            LockSupport.parkNanos(PAUSE_NS);
        } else {
            transfer.await(messenger.watching() ? WATCH_PERIOD_NS : messenger.nextDeadlineNs() - clock.nowNs());
        }
        return 0;
    }
}
