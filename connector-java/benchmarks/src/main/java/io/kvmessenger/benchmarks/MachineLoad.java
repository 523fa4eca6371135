package io.kvmessenger.benchmarks;

import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.CompilationMXBean;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * CPU time of this process and of the whole machine. A round is meaningless if other programs occupied the cores, so
 * each round records their share.
 */
final class MachineLoad {
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final CompilationMXBean COMPILER = ManagementFactory.getCompilationMXBean();
    private static final Path STAT = Path.of("/proc/stat");
    /** Unit of the first line of /proc/stat, independent of the kernel's own tick. */
    private static final long TICK_NS = 10_000_000;

    /** Rounding error: user and system time are each counted in whole ticks. */
    private static final long ROUNDING_NS = 2 * TICK_NS;

    private static final int IDLE = 4;
    private static final int IO_WAIT = 5;
    private static final int STEAL = 8;

    private MachineLoad() {}

    /** CPU time of this process: all threads, user and system. */
    static long processNs() {
        return SYSTEM.getProcessCpuTime();
    }

    /** Time that this JVM has spent compiling since it began; counted at the end of each compilation. */
    static long compiledMillis() {
        return COMPILER.getTotalCompilationTime();
    }

    /** CPU time of all processes, plus stolen time. */
    static long machineNs() {
        try {
            String[] fields =
                    Files.readString(STAT).lines().findFirst().orElse("").split(" +", -1);
            long ticks = 0;
            for (int i = 1; i <= STEAL; i++) {
                ticks += i == IDLE || i == IO_WAIT ? 0 : Long.parseLong(fields[i]);
            }
            return ticks * TICK_NS;
        } catch (IOException e) {
            throw new UncheckedIOException("cannot read " + STAT, e);
        }
    }

    /** Share of all cores that other processes used, from the time of all processes and that of this benchmark. */
    static double othersShare(long machineNs, long ownNs, long durationNs) {
        long capacityNs = durationNs * Runtime.getRuntime().availableProcessors();
        return Math.max(0, (double) (machineNs - ownNs - ROUNDING_NS) / capacityNs);
    }
}
