package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.OutboundLink;
import io.kvmessenger.transfer.spi.Transport;
import java.lang.invoke.VarHandle;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;

/**
 * The one thread that moves bytes: an agent whose duty cycle does commands, sockets, peers' queues and transports.
 *
 * <p>Other threads only {@link #execute}, {@link #wake} and {@link #close}. With nothing to do it spins for a
 * while, then sleeps in the event loop. It never runs user code.
 */
final class Worker implements Runnable {
    /** A sleeping worker looks at its time limits so often. */
    private static final int PARK_MILLIS = 100;

    private static final int LOOK_SOON_MILLIS = 1;
    /** With fewer cores than this a spinning worker may hold the core of the thread that it waits for: it yields. */
    private static final int SPIN_CORES_MIN = 4;

    /** More than the way there and back of a small write, so that an exchange of them never pays for a wake-up. */
    private static final long SPIN_NS = 50_000;

    private static final long CLOSE_LIMIT_MILLIS = 10_000;

    private final EventLoop loop;
    private final Consumer<Throwable> onBug;
    private final boolean yields;
    private final Thread thread;
    private final ConcurrentLinkedQueue<Runnable> commands = new ConcurrentLinkedQueue<>();
    private final AtomicBoolean parked = new AtomicBoolean();
    private final List<Transport> transports = new ArrayList<>();
    private final List<OutboundPeer> peers = new ArrayList<>();
    private boolean lookSoon;
    private volatile boolean running = true;

    /** @param onBug told, on the worker, of an error that ended it */
    Worker(String name, EventLoop loop, int coreCount, Consumer<Throwable> onBug) {
        this.loop = loop;
        this.onBug = onBug;
        yields = coreCount < SPIN_CORES_MIN;
        thread = Thread.ofPlatform().daemon().name(name).unstarted(this);
    }

    void start(List<Transport> all) {
        transports.addAll(all);
        thread.start();
    }

    /** Any thread: runs a command on the worker, in order. */
    void execute(Runnable command) {
        commands.add(command);
        wake();
    }

    /** Any thread: there is something new to see. */
    void wake() {
        VarHandle.fullFence();
        if (parked.getPlain() && parked.compareAndSet(true, false)) {
            loop.wake();
        }
    }

    /** Worker: takes a peer into the duty cycle. */
    void add(OutboundPeer peer) {
        peers.add(peer);
        peer.connect(loop.nowNs());
    }

    void remove(OutboundPeer peer) {
        peers.remove(peer);
    }

    /** Any thread: false when no byte is moved any more. */
    boolean isRunning() {
        return thread.isAlive();
    }

    @Override
    public void run() {
        try {
            long lastWorkNs = loop.nowNs();
            while (running) {
                if (doWork(0) > 0) {
                    lastWorkNs = loop.nowNs();
                } else if (loop.nowNs() - lastWorkNs < SPIN_NS) {
                    spinOnce();
                } else {
                    park();
                }
            }
        } catch (RuntimeException | Error bug) {
            onBug.accept(bug);
        } finally {
            running = false;
            for (OutboundPeer peer : peers) {
                peer.disconnect(TransferFault.DISCONNECTED, "this engine is closed");
            }
            transports.forEach(Transport::close);
        }
    }

    /** One duty cycle; returns how much was done. */
    private int doWork(int timeoutMillis) {
        int work = 0;
        lookSoon = false;
        for (Runnable command = commands.poll(); command != null; command = commands.poll()) {
            command.run();
            work++;
        }
        work += loop.poll(timeoutMillis);
        long nowNs = loop.nowNs();
        for (int i = 0; i < peers.size(); i++) {
            int done = peers.get(i).doWork(nowNs);
            lookSoon |= done == OutboundLink.LOOK_SOON;
            work += Math.max(0, done);
        }
        for (int i = 0; i < transports.size(); i++) {
            work += transports.get(i).doWork(nowNs);
        }
        return work;
    }

    @SuppressWarnings("ThreadPriorityCheck") // the yield is a courtesy: what is right does not depend on it
    private void spinOnce() {
        if (yields) {
            Thread.yield();
        } else {
            Thread.onSpinWait();
        }
    }

    private void park() {
        parked.set(true);
        transports.forEach(Transport::beforePark);
        // Whoever queued something before it could see the flag did not wake us: look once more.
        if (doWork(0) == 0) {
            loop.poll(lookSoon ? LOOK_SOON_MILLIS : PARK_MILLIS);
        }
        parked.set(false);
        transports.forEach(Transport::afterPark);
    }

    /** The submitters' thread: ends the worker, waits for it a bounded time, and closes the loop. */
    void close() {
        running = false;
        loop.wake();
        boolean interrupted = false;
        while (thread.isAlive()) {
            try {
                if (!thread.join(java.time.Duration.ofMillis(CLOSE_LIMIT_MILLIS))) {
                    throw new AssertionError("the worker " + thread.getName() + " did not end");
                }
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        loop.close();
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
