package io.kvmessenger.transfer.device;

import io.kvmessenger.foreign.CudaApi;
import io.kvmessenger.foreign.ForeignMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Page-locked host memory, which devices copy to and from while the CPU continues.
 *
 * <p>Any thread; its bytes belong to one at a time. Must be closed only when no copy to or from it is queued any more.
 */
public final class PinnedMemory implements AutoCloseable {
    private final DeviceDriver driver;
    private final int ordinal;
    private final MemorySegment memory;
    private final boolean allocated;

    private PinnedMemory(DeviceDriver driver, int ordinal, MemorySegment memory, boolean allocated) {
        this.driver = driver;
        this.ordinal = ordinal;
        this.memory = memory;
        this.allocated = allocated;
    }

    /**
     * Allocates memory for copies by any device.
     *
     * @param ordinal of the device in whose context it is allocated
     * @throws DeviceFault when the driver refuses
     */
    public static PinnedMemory allocate(DeviceDriver driver, int ordinal, long lengthBytes) {
        MemorySegment memory = driver.contexts().within(ordinal, () -> {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment made = arena.allocate(ValueLayout.JAVA_LONG);
                driver.require(
                        "cuMemHostAlloc of " + lengthBytes + " bytes",
                        driver.cuda().cuMemHostAlloc(made, lengthBytes, CudaApi.CU_MEMHOSTALLOC_PORTABLE));
                MemorySegment allocated = ForeignMemory.at(made.get(ValueLayout.JAVA_LONG, 0), lengthBytes);
                driver.kernels().onPinned(allocated);
                return allocated;
            }
        });
        return new PinnedMemory(driver, ordinal, memory, true);
    }

    /**
     * Pins existing memory, which its owner keeps for longer than this object.
     *
     * @throws DeviceFault when the driver refuses, as for memory that is pinned already
     */
    public static PinnedMemory of(DeviceDriver driver, int ordinal, MemorySegment memory) {
        driver.contexts().within(ordinal, () -> {
            driver.require(
                    "cuMemHostRegister of " + memory.byteSize() + " bytes",
                    driver.cuda()
                            .cuMemHostRegister_v2(
                                    memory.address(), memory.byteSize(), CudaApi.CU_MEMHOSTREGISTER_PORTABLE));
            driver.kernels().onPinned(memory);
        });
        return new PinnedMemory(driver, ordinal, memory, false);
    }

    public MemorySegment memory() {
        return memory;
    }

    @Override
    public void close() {
        driver.kernels().onUnpinned(memory);
        driver.contexts().within(ordinal, () -> {
            int result = allocated
                    ? driver.cuda().cuMemFreeHost(memory.address())
                    : driver.cuda().cuMemHostUnregister(memory.address());
            driver.require(allocated ? "cuMemFreeHost" : "cuMemHostUnregister", result);
        });
    }

    /** Closes it as far as it can be: of a context that has failed the driver gives nothing back, and copies nothing. */
    public void giveUp() {
        try {
            close();
        } catch (DeviceFault e) {
            // The streams have reported why.
        }
    }
}
