package io.kvmessenger.transfer.agent;

import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** Daemon threads for calls that may block and are rare: each ends when it has been idle for some seconds. */
public final class IdleThreads {
    private static final long IDLE_SECONDS = 5;

    private IdleThreads() {}

    /** At most {@code threadsMax} threads; further tasks wait for one. */
    public static ThreadPoolExecutor queueing(int threadsMax, String namePrefix) {
        return threads(threadsMax, threadsMax, new LinkedBlockingQueue<>(), namePrefix);
    }

    /** At most {@code threadsMax} threads; further tasks are rejected. */
    public static ThreadPoolExecutor rejecting(int threadsMax, String namePrefix) {
        return threads(0, threadsMax, new SynchronousQueue<>(), namePrefix);
    }

    private static ThreadPoolExecutor threads(int core, int max, BlockingQueue<Runnable> queue, String namePrefix) {
        ThreadPoolExecutor threads = new ThreadPoolExecutor(
                core,
                max,
                IDLE_SECONDS,
                TimeUnit.SECONDS,
                queue,
                Thread.ofPlatform().daemon().name(namePrefix, 0).factory());
        threads.allowCoreThreadTimeOut(true);
        return threads;
    }
}
