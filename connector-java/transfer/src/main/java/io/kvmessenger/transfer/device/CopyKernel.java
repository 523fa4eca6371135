package io.kvmessenger.transfer.device;

import io.kvmessenger.foreign.CudaApi;
import io.kvmessenger.foreign.LibCuda;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;

/**
 * The kernel {@code copy_runs.ptx}, compiled by the driver for one device: copies all runs of a table in one launch.
 *
 * <p>Safe from any thread. It knows neither which memory a kernel may reach nor when a launch is done: an address that
 * it does not reach ends the process's context on the device.
 */
final class CopyKernel {
    private static final String SOURCE = "copy_runs.ptx";
    private static final String NAME = "kv_messenger_copy_runs";

    /** A block copies run after run, 16 bytes a thread: a run of 2 KiB in one step. */
    private static final int THREADS = 128;

    /**
     * Limits a launch to 16,384 threads, 6 % of those that an H100 holds at a time (132 processors of 2,048), so that
     * the engine's own kernels keep the rest. They have 256 KiB on the way, four times what PCIe 5 x16 carries in a
     * microsecond.
     */
    private static final int BLOCKS_MAX = 128;

    private final LibCuda cuda;
    private final long module;
    private final long function;

    private CopyKernel(LibCuda cuda, long module, long function) {
        this.cuda = cuda;
        this.module = module;
        this.function = function;
    }

    /**
     * Compiles it for the device whose context is current.
     *
     * @throws DeviceFault when the driver refuses it
     */
    static CopyKernel load(DeviceDriver driver) {
        LibCuda cuda = driver.cuda();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.JAVA_LONG);
            driver.require("cuModuleLoadData", cuda.cuModuleLoadData(out, arena.allocateFrom(source())));
            long module = out.get(ValueLayout.JAVA_LONG, 0);
            int result = cuda.cuModuleGetFunction(out, module, arena.allocateFrom(NAME));
            if (result != CudaApi.CUDA_SUCCESS) {
                cuda.cuModuleUnload(module);
                driver.require("cuModuleGetFunction", result);
            }
            return new CopyKernel(cuda, module, out.get(ValueLayout.JAVA_LONG, 0));
        }
    }

    private static String source() {
        try (InputStream in = CopyKernel.class.getResourceAsStream(SOURCE)) {
            return new String(in.readAllBytes(), StandardCharsets.US_ASCII);
        } catch (IOException e) {
            throw new UncheckedIOException(SOURCE + " cannot be read", e);
        }
    }

    /** Queues a copy of the first runs of a table; returns the driver's result. Allocates nothing. */
    int launch(RunTables tables, int table, int count, long stream) {
        return cuda.cuLaunchKernel(
                function,
                Math.min(count, BLOCKS_MAX),
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream,
                tables.parameters(table, count),
                MemorySegment.NULL);
    }

    /** Its device's context is current, and none of its launches is queued any more. */
    void unload() {
        // The result is ignored: the module of a context that has failed is gone.
        cuda.cuModuleUnload(module);
    }
}
