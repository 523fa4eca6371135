package io.kvmessenger.transfer.device;

import io.kvmessenger.foreign.CudaApi;
import io.kvmessenger.foreign.LibCuda;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The first launch of a {@link CopyKernel}: short runs between two areas of its own, whose bytes are compared.
 *
 * <p>One thread, which waits for the launch. The installed driver has compiled the kernel, and this is its first run; a
 * launch from here also makes a driver that loads code late do so before the engine captures graphs.
 */
final class CopyKernelCheck {
    /** Of every length from 1 to this, so of each way to begin and to end a run. */
    private static final int RUNS = 96;

    private static final int STEP_BYTES = 128;
    private static final int ALIGNMENTS = 16;
    private static final long AREA_BYTES = (long) RUNS * STEP_BYTES;
    private static final long LENGTH_BYTES = 2 * AREA_BYTES;

    private CopyKernelCheck() {}

    /**
     * Whether the kernel copies what it should and nothing else. The device's context is current.
     *
     * @throws DeviceFault when the driver refuses a call
     */
    static boolean copiesRight(DeviceDriver driver, int ordinal, CopyKernel kernel, RunTables tables) {
        PinnedMemory scratch = PinnedMemory.allocate(driver, ordinal, LENGTH_BYTES);
        try {
            MemorySegment source = scratch.memory().asSlice(0, AREA_BYTES);
            MemorySegment target = scratch.memory().asSlice(AREA_BYTES);
            for (long at = 0; at < AREA_BYTES; at++) {
                source.set(ValueLayout.JAVA_BYTE, at, byteAt(at));
            }
            target.fill((byte) 0);
            for (int run = 0; run < RUNS; run++) {
                tables.set(
                        0, run, target.address() + targetOffset(run), source.address() + sourceOffset(run), run + 1L);
            }
            launch(driver, kernel, tables);
            return isRight(target);
        } finally {
            scratch.close();
        }
    }

    private static void launch(DeviceDriver driver, CopyKernel kernel, RunTables tables) {
        LibCuda cuda = driver.cuda();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment made = arena.allocate(ValueLayout.JAVA_LONG);
            driver.require("cuStreamCreate", cuda.cuStreamCreate(made, CudaApi.CU_STREAM_NON_BLOCKING));
            long stream = made.get(ValueLayout.JAVA_LONG, 0);
            try {
                driver.require("cuLaunchKernel", kernel.launch(tables, 0, RUNS, stream));
            } finally {
                int result = cuda.cuStreamSynchronize(stream);
                cuda.cuStreamDestroy_v2(stream);
                driver.require("cuStreamSynchronize", result);
            }
        }
    }

    /** Between the runs nothing may have been written. */
    private static boolean isRight(MemorySegment target) {
        for (int run = 0; run < RUNS; run++) {
            long begin = targetOffset(run);
            for (long at = (long) run * STEP_BYTES; at < (run + 1L) * STEP_BYTES; at++) {
                boolean inRun = at >= begin && at <= begin + run;
                byte expected = inRun ? byteAt(sourceOffset(run) + at - begin) : 0;
                if (target.get(ValueLayout.JAVA_BYTE, at) != expected) {
                    return false;
                }
            }
        }
        return true;
    }

    private static long sourceOffset(int run) {
        return (long) run * STEP_BYTES + run % ALIGNMENTS;
    }

    /** Every other run lies as its source does, and is copied by 16 bytes; most others are copied byte by byte. */
    private static long targetOffset(int run) {
        return (long) run * STEP_BYTES + (run % 2 == 0 ? run % ALIGNMENTS : (run / ALIGNMENTS + run * 7) % ALIGNMENTS);
    }

    /** Never 0, and another one at each of 251 places that follow each other. */
    private static byte byteAt(long at) {
        return (byte) (1 + at % 251);
    }
}
