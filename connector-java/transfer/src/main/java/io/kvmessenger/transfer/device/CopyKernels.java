package io.kvmessenger.transfer.device;

import io.kvmessenger.foreign.CudaApi;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;

/**
 * The {@link CopyKernel} of each device of a driver, if it is wanted and the device copies right by it; the tables of
 * its launches, which outlive the streams that use them; and which host memory it may reach.
 *
 * <p>Safe from any thread. A device without a kernel is no error: its streams use the copy engine.
 */
final class CopyKernels {
    private final DeviceDriver driver;
    private final boolean wanted;
    private final MappedMemory mapped = new MappedMemory();
    private final LongAdder runsCopied = new LongAdder();

    /** By ordinal. */
    private final Map<Integer, Loaded> loaded = new HashMap<>();

    private final List<PinnedMemory> tables = new ArrayList<>();
    private final Deque<PinnedMemory> freeTables = new ArrayDeque<>();

    /** @param kernel null for none */
    private record Loaded(CopyKernel kernel, String note) {}

    CopyKernels(DeviceDriver driver, boolean wanted) {
        this.driver = driver;
        this.wanted = wanted;
    }

    /** The device's kernel, compiled and tried at the first call; null if copies go by the copy engine. */
    synchronized CopyKernel of(int ordinal) {
        return wanted ? loaded.computeIfAbsent(ordinal, this::load).kernel() : null;
    }

    private Loaded load(int ordinal) {
        try {
            return driver.contexts().within(ordinal, () -> tried(ordinal));
        } catch (DeviceFault e) {
            return new Loaded(null, refused(ordinal, e.getMessage()));
        }
    }

    private Loaded tried(int ordinal) {
        CopyKernel kernel = CopyKernel.load(driver);
        boolean right = false;
        try {
            RunTables own = takeTables(ordinal);
            right = CopyKernelCheck.copiesRight(driver, ordinal, kernel, own);
            giveBack(own);
        } finally {
            if (!right) {
                kernel.unload();
            }
        }
        return right
                ? new Loaded(
                        kernel,
                        "device " + ordinal + " copies many small runs by a kernel (gpu_copy_kernel; its speed has not"
                                + " been measured)")
                : new Loaded(null, refused(ordinal, "it copied other bytes than it should"));
    }

    private static String refused(int ordinal, String why) {
        return "device " + ordinal + " copies each small run by itself, although gpu_copy_kernel is set: the kernel is"
                + " not used (" + why + ")";
    }

    /** For each device that was asked for: whether it has the kernel, and why not, in one line. */
    synchronized List<String> notes() {
        return loaded.values().stream().map(Loaded::note).toList();
    }

    /**
     * Tables for a stream, which no launch reads.
     *
     * @throws DeviceFault when the driver refuses memory
     */
    synchronized RunTables takeTables(int ordinal) {
        PinnedMemory memory = freeTables.poll();
        if (memory == null) {
            memory = PinnedMemory.allocate(driver, ordinal, RunTables.ALL_BYTES);
            tables.add(memory);
        }
        return new RunTables(memory);
    }

    /** None of the launches that read them is queued any more. */
    synchronized void giveBack(RunTables unused) {
        freeTables.add(unused.memory());
    }

    /** Memory that was page-locked in the current context; kernels may reach it if its address is the same for them. */
    void onPinned(MemorySegment memory) {
        if (!wanted) {
            return;
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment seen = arena.allocate(ValueLayout.JAVA_LONG);
            int result = driver.cuda().cuMemHostGetDevicePointer_v2(seen, memory.address(), 0);
            if (result == CudaApi.CUDA_SUCCESS && seen.get(ValueLayout.JAVA_LONG, 0) == memory.address()) {
                mapped.add(memory);
            }
        }
    }

    /** The memory is about to be released, and no copy to or from it is queued. */
    void onUnpinned(MemorySegment memory) {
        mapped.remove(memory);
    }

    /** Host memory that kernels may reach. */
    MappedMemory mapped() {
        return mapped;
    }

    void onRunsCopied(int count) {
        runsCopied.add(count);
    }

    /** Runs given to kernels since this was made. */
    long runsCopied() {
        return runsCopied.sum();
    }

    /** Releases all; the streams that launched are closed, and contexts still exist. */
    synchronized void close() {
        loaded.forEach((ordinal, each) -> {
            if (each.kernel() != null) {
                ignoringFaults(() -> driver.contexts().within(ordinal, each.kernel()::unload));
            }
        });
        loaded.clear();
        tables.forEach(memory -> ignoringFaults(memory::close));
        tables.clear();
        freeTables.clear();
    }

    /** What a context had that has failed is gone with it. */
    private static void ignoringFaults(Runnable release) {
        try {
            release.run();
        } catch (DeviceFault e) {
            // The streams have reported why.
        }
    }
}
