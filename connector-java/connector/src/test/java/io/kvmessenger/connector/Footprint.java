package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;

/**
 * What this process holds of the machine. A value.
 *
 * @param descriptorCount sockets and event queues
 * @param directBytes memory outside the heap that Java knows of
 * @param heapBytes live objects, after a collection
 */
record Footprint(int descriptorCount, int threadCount, long directBytes, long heapBytes) {
    /** Java's allocators keep some of what they once needed; a leak would be many times that. */
    private static final long GROWTH_MAX_BYTES = 64L << 20;

    private static final long BACK_LIMIT_NS = EngineDouble.AWAIT_LIMIT_NS;
    private static final long LOOK_PERIOD_NS = 50_000_000;

    /** Waits until the process holds no more than this; fails after a generous limit. */
    void assertBack() {
        long limitNs = System.nanoTime() + BACK_LIMIT_NS;
        Footprint now = now();
        while (!now.within(this) && System.nanoTime() < limitNs) {
            LockSupport.parkNanos(LOOK_PERIOD_NS);
            now = now();
        }
        System.out.println("held before: " + this + ", after: " + now);
        assertThat(now.within(this)).as("before %s, after %s", this, now).isTrue();
    }

    private boolean within(Footprint before) {
        return descriptorCount <= before.descriptorCount
                && threadCount <= before.threadCount
                && directBytes <= before.directBytes + GROWTH_MAX_BYTES
                && heapBytes <= before.heapBytes + GROWTH_MAX_BYTES;
    }

    static Footprint now() {
        System.gc();
        return new Footprint(descriptors(), Thread.activeCount(), direct(), heap());
    }

    private static int descriptors() {
        try (Stream<Path> open = Files.list(Path.of("/proc/self/fd"))) {
            return (int) open.map(Footprint::targetOf)
                    .filter(to -> to.startsWith("socket") || to.startsWith("anon_inode"))
                    .count();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static String targetOf(Path descriptor) {
        try {
            return Files.readSymbolicLink(descriptor).toString();
        } catch (IOException e) {
            return ""; // closed since it was listed
        }
    }

    private static long direct() {
        return ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class).stream()
                .mapToLong(BufferPoolMXBean::getMemoryUsed)
                .sum();
    }

    private static long heap() {
        return ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
    }
}
