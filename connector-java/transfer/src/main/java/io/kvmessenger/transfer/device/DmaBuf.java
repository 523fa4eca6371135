package io.kvmessenger.transfer.device;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.CudaApi;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.transfer.Memory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * Device memory as other hardware accesses it: a descriptor and the position of the memory in it. A value; the
 * descriptor is closed once hardware has registered the memory, as the registration keeps the memory alive.
 *
 * @param fd belongs to the receiver of this value
 * @param offsetBytes where in it the memory begins
 */
public record DmaBuf(int fd, long offsetBytes) {
    /** @throws DeviceFault when the driver or the device cannot export, or not this memory */
    static DmaBuf of(DeviceDriver driver, Memory.Device memory) {
        return driver.contexts().within(memory.ordinal(), () -> {
            try (Arena arena = Arena.ofConfined()) {
                requireOnDevice(driver, memory, arena);
                requireSupport(driver, memory.ordinal());
                return export(driver, memory, arena);
            }
        });
    }

    private static DmaBuf export(DeviceDriver driver, Memory.Device memory, Arena arena) {
        long offsetBytes = memory.address() % ForeignMemory.PAGE_BYTES;
        long firstPage = memory.address() - offsetBytes;
        long pagesBytes =
                Math.ceilDiv(offsetBytes + memory.lengthBytes(), ForeignMemory.PAGE_BYTES) * ForeignMemory.PAGE_BYTES;
        MemorySegment fd = arena.allocate(JAVA_INT);
        driver.require(
                "cuMemGetHandleForAddressRange of " + pagesBytes + " bytes",
                driver.cuda()
                        .cuMemGetHandleForAddressRange(
                                fd, firstPage, pagesBytes, CudaApi.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
        return new DmaBuf(fd.get(JAVA_INT, 0), offsetBytes);
    }

    private static void requireSupport(DeviceDriver driver, int ordinal) {
        if (driver.attributeOf(CudaApi.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, ordinal) == 0) {
            throw new DeviceFault("exporting memory of device " + ordinal, "no support for dma-buf");
        }
    }

    /** Verifies the ordinal with the driver: the visibility of writes is determined for the device that was named. */
    private static void requireOnDevice(DeviceDriver driver, Memory.Device memory, Arena arena) {
        MemorySegment ordinal = arena.allocate(JAVA_LONG);
        driver.require(
                "cuPointerGetAttribute",
                driver.cuda()
                        .cuPointerGetAttribute(ordinal, CudaApi.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory.address()));
        if (ordinal.get(JAVA_INT, 0) != memory.ordinal()) {
            throw new DeviceFault("exporting " + memory, "memory of device " + ordinal.get(JAVA_INT, 0));
        }
    }
}
