package io.kvmessenger.benchmarks;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CountDownLatch;

/**
 * Another run of this process, with an engine and a target of its own, whose rounds follow each other while it flows:
 * the traffic that a measured run has beside it.
 *
 * <p>Has a thread of its own; started and ended by the measured run's. It measures nothing.
 */
final class BesideRun {
    private final Thread thread;
    private final CountDownLatch warm = new CountDownLatch(1);
    /** Guarded by this object, as is the next. */
    private boolean flowing;

    private boolean ended;
    private volatile Throwable fault;

    /** What runs beside, with what it does once it is connected. */
    interface Program {
        void run(KvPerf.Rounds rounds) throws IOException, InterruptedException;
    }

    private BesideRun(Program program) {
        thread = new Thread(() -> run(program), "beside");
    }

    /** Starts a run with the arguments that are the lines of a file; returns when it is warm, and does not flow. */
    static BesideRun start(Path arguments) throws IOException, InterruptedException {
        String[] args = Files.readAllLines(arguments).toArray(String[]::new);
        return start(rounds -> KvPerf.run(args, rounds));
    }

    static BesideRun start(Program program) throws InterruptedException {
        BesideRun run = new BesideRun(program);
        run.thread.start();
        run.warm.await();
        run.requireNoFault();
        return run;
    }

    private void run(Program program) {
        try {
            program.run(this::flow);
        } catch (Throwable any) { // an Error too: nothing beside must not look like a run beside
            fault = any;
        } finally {
            warm.countDown();
        }
    }

    private void flow(KvPerfOptions options, Initiator initiator) throws IOException, InterruptedException {
        KvPerf.warmUp(options, initiator);
        warm.countDown();
        while (awaitFlow()) {
            KvPerf.checked(initiator.run());
        }
    }

    /** False once it has ended. */
    private synchronized boolean awaitFlow() throws InterruptedException {
        while (!flowing && !ended) {
            wait();
        }
        return !ended;
    }

    /** A round that has begun goes on to its end. */
    synchronized void setFlowing(boolean on) {
        requireNoFault();
        flowing = on;
        notifyAll();
    }

    private void requireNoFault() {
        if (fault != null) {
            String why = fault instanceof Error ? fault.toString() : fault.getMessage();
            throw new IllegalStateException("the run beside this one: " + why, fault);
        }
    }

    /** Returns when the round that has begun is over. */
    void end() throws InterruptedException {
        synchronized (this) {
            ended = true;
            notifyAll();
        }
        thread.join();
        requireNoFault();
    }
}
