package io.kvmessenger.benchmarks;

import static org.assertj.core.api.Assertions.assertThat;

import com.sun.management.ThreadMXBean;
import io.kvmessenger.foreign.FfmLibFabric;
import java.lang.management.ManagementFactory;
import java.util.function.IntConsumer;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Counts what the methods themselves allocate: the build forbids to inline them, which would remove some of it. */
@Timeout(900)
final class WritePairTest {
    private static final ThreadMXBean THREADS = (ThreadMXBean) ManagementFactory.getThreadMXBean();
    private static final int WRITES = 2_000;
    private static final int DEVICE_PAGE_BYTES = 256;
    /** Until all is compiled, lambdas and calls into the C library allocate. */
    private static final int TRIES_MAX = 200;

    @Test
    void shouldAllocateNothingForAWriteOverSharedMemoryOnceWarm() {
        try (WritePair pair = new WritePair("shm")) {
            assertAllocatesNothing(pair::write);
        }
    }

    @Test
    void shouldAllocateNothingForAWriteOverTcpOnceWarm() {
        try (WritePair pair = new WritePair("tcp")) {
            assertAllocatesNothing(pair::write);
        }
    }

    @Test
    void shouldAllocateNothingForAScatterOverSharedMemoryOnceWarm() {
        try (WritePair pair = new WritePair("shm")) {
            pair.formGroup();
            assertAllocatesNothing(pair::scatter);
        }
    }

    @Test
    void shouldAllocateNothingForAWriteOverLibfabricOnceWarm() {
        assumeLibfabric();
        try (WritePair pair = new WritePair("libfabric")) {
            assertAllocatesNothing(pair::write);
        }
    }

    /** Gathered at the writer, landed by frames at the target. */
    @Test
    void shouldAllocateNothingForAWriteToADeviceOverLibfabricOnceWarm() {
        assumeLibfabric();
        assertAllocatesNothingOnADevice("libfabric");
    }

    /** Gathered at the writer, landed in the order of the sockets at the target. */
    @Test
    void shouldAllocateNothingForAWriteToADeviceOverTcpOnceWarm() {
        assertAllocatesNothingOnADevice("tcp");
    }

    private static void assertAllocatesNothingOnADevice(String transport) {
        String home = System.getProperty("kvmessenger.cuda-stand-in", "");
        Assumptions.assumeFalse(
                home.isEmpty(),
                "no stand-in for NVIDIA's driver: -Dkvmessenger.cuda-stand-in names no folder of it,"
                        + " examples/setup/find-cuda-stand-in does");
        try (WritePair pair = WritePair.onDevice(transport, home + "/libcuda.so.1", DEVICE_PAGE_BYTES)) {
            assertAllocatesNothing(pair::write);
        }
    }

    private static void assumeLibfabric() {
        try {
            new FfmLibFabric(FfmLibFabric.DEFAULT_NAME);
        } catch (UnsatisfiedLinkError e) {
            Assumptions.abort(e.getMessage() + ": -Dkvmessenger.libfabric names no folder of it,"
                    + " examples/setup/find-libfabric does");
        }
    }

    private static void assertAllocatesNothing(IntConsumer move) {
        long allocatedBytes = -1;
        for (int i = 0; i < TRIES_MAX && allocatedBytes != 0; i++) {
            long before = THREADS.getCurrentThreadAllocatedBytes();
            move.accept(WRITES);
            allocatedBytes = THREADS.getCurrentThreadAllocatedBytes() - before;
        }
        assertThat(allocatedBytes)
                .as("bytes allocated for the last %d writes", WRITES)
                .isZero();
    }
}
