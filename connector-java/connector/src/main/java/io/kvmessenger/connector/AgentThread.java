package io.kvmessenger.connector;

import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.NanoClock;
import io.kvmessenger.transfer.Doorbell;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;

/**
 * The messenger's one thread: turns its duty cycle while there is work, sleeps until a deadline or a ring when there is
 * none, and looks at the layer counter every {@link #WATCH_PERIOD_NS} while a forward pass is being sent.
 */
final class AgentThread implements Doorbell {
    /** How late a finished layer may be noticed; a spinning watcher would take a core from the forward pass. */
    static final long WATCH_PERIOD_NS = 50_000;
    /** A turn may take that long on a crowded machine; beyond it {@code /health} says that the messenger is stuck. */
    static final long STUCK_LIMIT_NS = 5_000_000_000L;

    private final NanoClock clock;
    private final Consumer<Throwable> onFault;
    private volatile Thread thread;
    private volatile boolean sleeping;
    private volatile boolean stopping;
    private volatile long lastTurnNs;
    private Inbox inbox;
    private Messenger messenger;

    AgentThread(NanoClock clock, Consumer<Throwable> onFault) {
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

    @Override
    public void ring() {
        if (sleeping) {
            LockSupport.unpark(thread);
        }
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

    /** Ends the duty cycle; when it returns true the messenger is no longer touched by it. */
    boolean stop(long limitMillis) {
        stopping = true;
        LockSupport.unpark(thread);
        try {
            thread.join(limitMillis);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        return !thread.isAlive();
    }

    private void run() {
        while (!stopping) {
            try {
                if (turn() == 0) {
                    sleep();
                }
            } catch (Throwable fault) { // a bug must neither end the duty cycle nor spin it
                onFault.accept(fault);
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(10));
            }
        }
    }

    private int turn() {
        lastTurnNs = clock.nowNs();
        return inbox.drainTo(messenger) + messenger.doWork();
    }

    private void sleep() {
        if (messenger.watching()) {
            LockSupport.parkNanos(WATCH_PERIOD_NS);
            return;
        }
        sleeping = true;
        if (turn() == 0 && !stopping) { // whatever rang before the flag was up is seen here
            long waitNs = messenger.nextDeadlineNs() - clock.nowNs();
            if (waitNs > 0) {
                LockSupport.parkNanos(waitNs);
            }
        }
        sleeping = false;
    }
}
