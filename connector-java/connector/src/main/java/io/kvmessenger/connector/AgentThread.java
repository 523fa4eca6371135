package io.kvmessenger.connector;

import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.NanoClock;
import io.kvmessenger.transfer.TransferEngine;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;

/**
 * The messenger's one thread: turns its duty cycle while there is work, waits until a deadline or a wake-up when there is
 * none, and looks at the layer counter every {@link #WATCH_PERIOD_NS} while a forward pass is being sent. It polls the
 * transfer engine, so it waits there, and closes it at its end.
 */
final class AgentThread {
    /** How late a finished layer may be noticed; a spinning watcher would take a core from the forward pass. */
    static final long WATCH_PERIOD_NS = 50_000;
    /** A turn may take that long on a crowded machine; beyond it {@code /health} says that the messenger is stuck. */
    static final long STUCK_LIMIT_NS = 5_000_000_000L;

    private final TransferEngine transfer;
    private final NanoClock clock;
    private final Consumer<Throwable> onFault;
    private volatile Thread thread;
    private volatile boolean stopping;
    /** The transfer engine is closed. */
    private volatile boolean ended;

    private volatile long lastTurnNs;
    private Inbox inbox;
    private Messenger messenger;

    AgentThread(TransferEngine transfer, NanoClock clock, Consumer<Throwable> onFault) {
        this.transfer = transfer;
        this.clock = clock;
        this.onFault = onFault;
    }

    void start(Messenger messenger, Inbox inbox) {
        this.messenger = messenger;
        this.inbox = inbox;
        Thread starting = Thread.ofPlatform().name("kv-messenger").daemon().unstarted(this::run);
        lastTurnNs = clock.nowNs();
        thread = starting;
        starting.start();
    }

    /** Why the messenger does not work, for {@code /health}; it turns at least once in {@code heartbeatNs}. Any thread. */
    Optional<String> illness(long heartbeatNs) {
        if (!thread.isAlive()) {
            return Optional.of("the messenger's thread has ended");
        }
        long sinceNs = clock.nowNs() - lastTurnNs;
        return sinceNs > heartbeatNs + STUCK_LIMIT_NS
                ? Optional.of("the messenger's thread has been stuck for " + sinceNs / 1_000_000 + " ms")
                : Optional.empty();
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
            try {
                if (turn() == 0) {
                    await();
                }
            } catch (Throwable fault) { // a bug must neither end the duty cycle nor spin it
                onFault.accept(fault);
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(10));
            }
        }
        transfer.close();
        ended = true;
    }

    private int turn() {
        lastTurnNs = clock.nowNs();
        return inbox.drainTo(messenger) + messenger.doWork();
    }

    private void await() {
        transfer.await(messenger.watching() ? WATCH_PERIOD_NS : messenger.nextDeadlineNs() - clock.nowNs());
    }
}
