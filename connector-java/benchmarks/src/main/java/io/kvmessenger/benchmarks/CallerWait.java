package io.kvmessenger.benchmarks;

import io.kvmessenger.transfer.Doorbell;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;

/**
 * How the polling thread waits when there is nothing to poll: it spins for a while, then parks until the doorbell.
 *
 * <p>{@link #ring} is for any thread, the rest for the polling one.
 */
final class CallerWait implements Doorbell {
    /** A park ends by itself after this, so that limits are looked at. */
    private static final long PARK_NS = 100_000_000;

    private final Thread caller = Thread.currentThread();
    private final AtomicBoolean rung = new AtomicBoolean();
    /** With so few cores the worker that we wait for needs ours, as the transfer worker itself holds it. */
    private static final int SPIN_CORES_MIN = 4;

    private final long spinNs;
    private final boolean yields = Runtime.getRuntime().availableProcessors() < SPIN_CORES_MIN;
    private long idleSinceNs;
    private boolean idle;

    CallerWait(long spinNs) {
        this.spinNs = spinNs;
    }

    @Override
    public void ring() {
        if (!rung.get() && rung.compareAndSet(false, true)) {
            LockSupport.unpark(caller);
        }
    }

    /** To be called after every poll, with what it returned. */
    void afterPoll(int polled) {
        if (polled > 0) {
            idle = false;
            return;
        }
        if (!idle) {
            idle = true;
            idleSinceNs = System.nanoTime();
        }
        if (System.nanoTime() - idleSinceNs < spinNs) {
            spinOnce();
        } else if (!rung.getAndSet(false)) {
            LockSupport.parkNanos(this, PARK_NS);
        }
    }

    @SuppressWarnings("ThreadPriorityCheck") // the yield is a courtesy: what is right does not depend on it
    private void spinOnce() {
        if (yields) {
            Thread.yield();
        } else {
            Thread.onSpinWait();
        }
    }
}
