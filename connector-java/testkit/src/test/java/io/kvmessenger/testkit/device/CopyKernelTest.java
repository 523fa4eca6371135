package io.kvmessenger.testkit.device;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.transfer.device.CopyStream;
import io.kvmessenger.transfer.device.DeviceCopyStream;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.device.PinnedMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Small runs by the kernel, against the stand-in, which reads a launch's table when its turn has come. What the kernel's
 * instructions do is run by test_ptx_kernels.py.
 */
final class CopyKernelTest {
    private static final int RUNS = 64;
    private static final long STEP_BYTES = 4096;
    private static final long AREA_BYTES = RUNS * STEP_BYTES;
    /** Of the first operation only: far longer than it takes to queue the others. */
    private static final long DELAY_NS = 1_000_000_000;

    private static final int OUT_OF_MEMORY = 2;
    private static final int LAUNCHES_MAX = 8;

    private StandInCuda standIn;
    private DeviceDriver driver;
    private DeviceAllocation memory;
    private PinnedMemory pinned;
    private CopyStream stream;
    private long copiedBefore;

    @BeforeEach
    void open() {
        standIn = StandInCuda.load();
        begin();
    }

    private void begin() {
        driver = StandInCuda.driver(true);
        driver.prepareCopies(0);
        memory = DeviceAllocation.ofHandles(driver, 0, 1, DeviceAllocation.GRANULE_BYTES);
        pinned = PinnedMemory.allocate(driver, 0, AREA_BYTES);
        stream = DeviceCopyStream.open(driver, 0);
        copiedBefore = standIn.runsCopied();
    }

    @AfterEach
    void giveBack() {
        if (driver == null) {
            return;
        }
        standIn.delay(0);
        standIn.dropTails(0);
        standIn.lie(false);
        end();
    }

    private void end() {
        stream.close();
        pinned.close();
        memory.close();
        driver.close();
        assertThat(standIn.held()).isZero();
    }

    private void beginAgain(Runnable change) {
        end();
        change.run();
        begin();
    }

    private void awaitDone(long serial) {
        while (!stream.isDone(serial)) {
            Thread.onSpinWait();
        }
    }

    private long runsCopied() {
        return standIn.runsCopied() - copiedBefore;
    }

    private void fill(MemorySegment area, int seed) {
        for (long at = 0; at < area.byteSize(); at += Long.BYTES) {
            area.set(ValueLayout.JAVA_LONG, at, (at + 1) * 0x9E3779B97F4A7C15L + seed);
        }
    }

    /** To host memory, to another place of the device, and from there back: each run of its own length and alignment. */
    private void moveAll(int count, long shortestBytes) {
        MemorySegment source = standIn.bytes(memory.address(), AREA_BYTES);
        long there = memory.address() + AREA_BYTES;
        long back = there + AREA_BYTES;
        fill(source, 1);
        pinned.memory().fill((byte) 0);
        for (int run = 0; run < count; run++) {
            stream.toHost(pinned.memory().address() + target(run), memory.address() + source(run), shortestBytes + run);
        }
        stream.mark();
        for (int run = 0; run < count; run++) {
            stream.fromHost(there + source(run), pinned.memory().address() + target(run), shortestBytes + run);
        }
        stream.mark();
        for (int run = 0; run < count; run++) {
            stream.onDevice(back + target(run), there + source(run), shortestBytes + run);
        }
        awaitDone(stream.mark());
        MemorySegment moved = standIn.bytes(back, AREA_BYTES);
        for (int run = 0; run < count; run++) {
            long length = shortestBytes + run;
            assertThat(moved.asSlice(target(run), length).mismatch(source.asSlice(source(run), length)))
                    .as("run %d", run)
                    .isEqualTo(-1);
            assertThat(moved.get(ValueLayout.JAVA_BYTE, target(run) + length)).isZero();
        }
    }

    private static long source(int run) {
        return run * STEP_BYTES + run % 16;
    }

    private static long target(int run) {
        return run * STEP_BYTES + run * 5L % 16;
    }

    @Test
    void shouldCopyManySmallRunsInOneLaunch() {
        long launches = standIn.callCount("cuLaunchKernel");
        long batches = standIn.callCount("cuMemcpyBatchAsync_v2");
        moveAll(RUNS, 1);
        assertThat(runsCopied()).isEqualTo(3 * RUNS);
        assertThat(driver.runsCopiedByKernel()).isEqualTo(3 * RUNS);
        assertThat(standIn.callCount("cuLaunchKernel") - launches).isEqualTo(3);
        assertThat(standIn.callCount("cuMemcpyBatchAsync_v2")).isEqualTo(batches);
        assertThat(driver.notes())
                .containsExactly("device 0 copies many small runs by a kernel (gpu_copy_kernel; its speed"
                        + " has not been measured)");
    }

    @Test
    void shouldLeaveFewRunsToTheCopyEngine() {
        moveAll(15, 100);
        assertThat(runsCopied()).isZero();
        moveAll(16, 100);
        assertThat(runsCopied()).isEqualTo(3 * 16);
    }

    @Test
    void shouldLeaveABatchWithALongRunToTheCopyEngine() {
        long longest = 32 << 10;
        for (int extra = 1; extra >= 0; extra--) {
            for (int run = 0; run < 20; run++) {
                stream.toHost(pinned.memory().address() + run, memory.address(), 1);
            }
            stream.toHost(pinned.memory().address() + 64, memory.address(), longest + extra);
            awaitDone(stream.mark());
            assertThat(runsCopied()).isEqualTo(extra == 1 ? 0 : 21);
        }
    }

    /** A kernel that touches such memory ends its process's context. */
    @Test
    void shouldLeaveHostMemoryThatKernelsDoNotReachToTheCopyEngine() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment own = arena.allocate(AREA_BYTES, 4096);
            PinnedMemory registered = PinnedMemory.of(driver, 0, own);
            copyTo(own);
            assertThat(runsCopied()).isEqualTo(RUNS);
            registered.close();
            standIn.fail("cuMemHostGetDevicePointer_v2", 1, OUT_OF_MEMORY);
            PinnedMemory unseen = PinnedMemory.of(driver, 0, own);
            copyTo(own);
            assertThat(runsCopied()).isEqualTo(RUNS);
            unseen.close();
        }
    }

    private void copyTo(MemorySegment own) {
        MemorySegment source = standIn.bytes(memory.address(), AREA_BYTES);
        fill(source, 3);
        own.fill((byte) 0);
        for (int run = 0; run < RUNS; run++) {
            stream.toHost(own.address() + run * STEP_BYTES, memory.address() + run * STEP_BYTES, STEP_BYTES);
        }
        awaitDone(stream.mark());
        assertThat(own.mismatch(source)).isEqualTo(-1);
    }

    /** More launches than there are tables, none of which has run when the last one is queued. */
    @Test
    void shouldNotChangeATableThatAKernelMayStillRead() {
        standIn.delay(DELAY_NS);
        queueAreas(LAUNCHES_MAX + 4);
        assertThat(wrongAreas(LAUNCHES_MAX + 4)).isZero();
        assertThat(runsCopied()).isBetween(LAUNCHES_MAX * 16L, (LAUNCHES_MAX + 4) * 16L);
        long before = runsCopied();
        queueAreas(1);
        assertThat(wrongAreas(1)).isZero();
        assertThat(runsCopied() - before).isEqualTo(16);
    }

    /** So the test above fails where a table is changed too early. */
    @Test
    void shouldCopyOtherBytesIfEventsLie() {
        standIn.delay(DELAY_NS);
        standIn.lie(true);
        queueAreas(LAUNCHES_MAX + 4);
        standIn.lie(false);
        assertThat(wrongAreas(LAUNCHES_MAX + 4)).isPositive();
    }

    /** Each area is 16 runs of 256 bytes, which a launch of its own copies. */
    private void queueAreas(int count) {
        fill(standIn.bytes(memory.address(), AREA_BYTES), count);
        pinned.memory().fill((byte) 0);
        for (int run = 0; run < count * 16; run++) {
            stream.toHost(pinned.memory().address() + run * 256L, memory.address() + run * 256L, 256);
            if (run % 16 == 15) {
                stream.mark();
            }
        }
    }

    private int wrongAreas(int count) {
        standIn.delay(0);
        awaitDone(stream.mark());
        MemorySegment source = standIn.bytes(memory.address(), AREA_BYTES);
        int wrong = 0;
        for (int area = 0; area < count; area++) {
            MemorySegment copied = pinned.memory().asSlice(area * STEP_BYTES, STEP_BYTES);
            wrong += copied.mismatch(source.asSlice(area * STEP_BYTES, STEP_BYTES)) == -1 ? 0 : 1;
        }
        return wrong;
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "cuModuleLoadData",
                "cuModuleGetFunction",
                "cuMemHostAlloc",
                "cuStreamCreate",
                "cuLaunchKernel",
                "cuStreamSynchronize"
            })
    void shouldCopyAllTheSameWhereTheDriverRefuses(String call) {
        beginAgain(() -> standIn.fail(call, 1, OUT_OF_MEMORY));
        assertThat(driver.notes())
                .singleElement()
                .asString()
                .startsWith(
                        "device 0 copies each small run by itself, although gpu_copy_kernel is set: the kernel is not"
                                + " used (" + call)
                .endsWith("failed with CUDA_ERROR_OUT_OF_MEMORY)");
        moveAll(RUNS, 1);
        assertThat(runsCopied()).isZero();
    }

    @Test
    void shouldNotUseAKernelThatCopiesOtherBytes() {
        beginAgain(() -> standIn.dropTails(1));
        assertThat(driver.notes())
                .singleElement()
                .asString()
                .endsWith("the kernel is not used (it copied other bytes than it should)");
        moveAll(RUNS, 1);
        assertThat(runsCopied()).isZero();
    }

    /** So the comparisons above see each byte. */
    @Test
    void shouldBeSeenToDropATail() {
        standIn.dropTails(100);
        assertThatThrownBy(() -> moveAll(RUNS, 100)).isInstanceOf(AssertionError.class);
    }

    @Test
    void shouldTakeNothingMoreOnceALaunchHasFailed() {
        standIn.fail("cuLaunchKernel", 1, OUT_OF_MEMORY);
        queueRuns(memory.address());
        assertThatThrownBy(stream::mark)
                .isInstanceOf(DeviceFault.class)
                .hasMessage("cuLaunchKernel failed with CUDA_ERROR_OUT_OF_MEMORY");
        assertThatThrownBy(stream::mark).isInstanceOf(DeviceFault.class);
    }

    /** As on hardware, where all that the process has on the device is lost then. */
    @Test
    void shouldReportAnAddressThatTheDeviceDoesNotReach() {
        queueRuns(memory.address() + DeviceAllocation.GRANULE_BYTES);
        assertThatThrownBy(() -> awaitDone(stream.mark()))
                .isInstanceOf(DeviceFault.class)
                .hasMessageEndingWith("failed with CUDA_ERROR_ILLEGAL_ADDRESS");
        stream.close();
        standIn.forget();
    }

    private void queueRuns(long from) {
        for (int run = 0; run < RUNS; run++) {
            stream.toHost(pinned.memory().address() + run * STEP_BYTES, from + run * STEP_BYTES, 64);
        }
    }

    @Test
    void shouldUseTheTablesOfStreamsThatAreClosed() {
        long allocated = standIn.callCount("cuMemHostAlloc");
        for (int i = 0; i < 5; i++) {
            CopyStream other = DeviceCopyStream.open(driver, 0);
            other.close();
        }
        assertThat(standIn.callCount("cuMemHostAlloc") - allocated).isEqualTo(1);
    }

    @Test
    void shouldLoadNothingIfItIsNotWanted() {
        long loaded = standIn.callCount("cuModuleLoadData");
        long asked = standIn.callCount("cuMemHostGetDevicePointer_v2");
        DeviceDriver without = StandInCuda.driver();
        without.prepareCopies(0);
        DeviceCopyStream.open(without, 0).close();
        PinnedMemory.allocate(without, 0, 4096).close();
        assertThat(without.notes()).isEmpty();
        without.close();
        assertThat(standIn.callCount("cuModuleLoadData")).isEqualTo(loaded);
        assertThat(standIn.callCount("cuMemHostGetDevicePointer_v2")).isEqualTo(asked);
    }
}
