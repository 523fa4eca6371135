package io.kvmessenger.benchmarks;

import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.NoDeviceException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * The memory of two engines, both in host memory or both in a device's.
 *
 * @param release frees both
 */
record PairMemory(Memory source, Memory target, Runnable release) implements AutoCloseable {
    static PairMemory onHost(long lengthBytes) {
        HostMemory source = HostMemory.allocate("source", lengthBytes);
        HostMemory target = HostMemory.allocate("target", lengthBytes);
        return new PairMemory(source.shared(), target.shared(), () -> {
            source.close();
            target.close();
        });
    }

    /**
     * Both on device 0.
     *
     * @param library NVIDIA's driver, or a stand-in for it
     */
    static PairMemory onDevice(String library, long lengthBytes) {
        DeviceDriver driver;
        try {
            driver = DeviceDriver.open(library);
        } catch (NoDeviceException e) {
            throw new IllegalStateException(e.getMessage(), e);
        }
        Memory.Device source = allocate(driver, lengthBytes);
        Memory.Device target = allocate(driver, lengthBytes);
        return new PairMemory(source, target, () -> {
            free(driver, source);
            free(driver, target);
            driver.close();
        });
    }

    private static Memory.Device allocate(DeviceDriver driver, long lengthBytes) {
        return driver.contexts().within(0, () -> {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment out = arena.allocate(JAVA_LONG);
                driver.require("cuMemAlloc", driver.cuda().cuMemAlloc_v2(out, lengthBytes));
                return new Memory.Device(0, out.get(JAVA_LONG, 0), lengthBytes, Memory.HandleKind.NONE);
            }
        });
    }

    private static void free(DeviceDriver driver, Memory.Device memory) {
        driver.contexts().within(0, () -> {
            driver.require("cuMemFree", driver.cuda().cuMemFree_v2(memory.address()));
            return null;
        });
    }

    @Override
    public void close() {
        release.run();
    }
}
