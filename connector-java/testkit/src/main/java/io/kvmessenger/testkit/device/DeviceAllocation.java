package io.kvmessenger.testkit.device;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.CudaApi;
import io.kvmessenger.foreign.CudaLayout;
import io.kvmessenger.foreign.LibCuda;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Memory.HandleKind;
import io.kvmessenger.transfer.device.DeviceDriver;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * Device memory as an engine would allocate it: of one handle or several adjacent ones, exportable or not.
 *
 * <p>One thread.
 */
public final class DeviceAllocation implements AutoCloseable {
    public static final long GRANULE_BYTES = 2 << 20;

    private final DeviceDriver driver;
    private final int ordinal;
    private final long address;
    private final long lengthBytes;
    /** Length of each handle's mapping; 0 for memory without a handle. */
    private final long stepBytes;

    private final HandleKind handleKind;

    private DeviceAllocation(
            DeviceDriver driver, int ordinal, long address, long lengthBytes, long stepBytes, HandleKind handleKind) {
        this.driver = driver;
        this.ordinal = ordinal;
        this.address = address;
        this.lengthBytes = lengthBytes;
        this.stepBytes = stepBytes;
        this.handleKind = handleKind;
    }

    /** As from cuMemCreate, in several handles of one size, each exportable as a descriptor. */
    public static DeviceAllocation ofHandles(DeviceDriver driver, int ordinal, int handleCount, long handleBytes) {
        return mapped(
                driver,
                ordinal,
                handleCount,
                handleBytes,
                CudaApi.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                HandleKind.POSIX_FD);
    }

    /** As from cuMemCreate without a handle type: other processes cannot map it. */
    public static DeviceAllocation unexportable(DeviceDriver driver, int ordinal, long lengthBytes) {
        return mapped(driver, ordinal, 1, lengthBytes, 0, HandleKind.NONE);
    }

    /** As from cudaMalloc. */
    public static DeviceAllocation legacy(DeviceDriver driver, int ordinal, long lengthBytes) {
        return driver.contexts().within(ordinal, () -> {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment out = arena.allocate(JAVA_LONG);
                driver.require("cuMemAlloc", driver.cuda().cuMemAlloc_v2(out, lengthBytes));
                return new DeviceAllocation(driver, ordinal, out.get(JAVA_LONG, 0), lengthBytes, 0, HandleKind.NONE);
            }
        });
    }

    private static DeviceAllocation mapped(
            DeviceDriver driver, int ordinal, int handleCount, long handleBytes, int handleType, HandleKind kind) {
        LibCuda cuda = driver.cuda();
        return driver.contexts().within(ordinal, () -> {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment out = arena.allocate(JAVA_LONG);
                long lengthBytes = handleCount * handleBytes;
                driver.require("cuMemAddressReserve", cuda.cuMemAddressReserve(out, lengthBytes, 0, 0, 0));
                long address = out.get(JAVA_LONG, 0);
                MemorySegment properties = properties(arena, ordinal, handleType);
                for (long at = address; at < address + lengthBytes; at += handleBytes) {
                    driver.require("cuMemCreate", cuda.cuMemCreate(out, handleBytes, properties, 0));
                    long handle = out.get(JAVA_LONG, 0);
                    driver.require("cuMemMap", cuda.cuMemMap(at, handleBytes, 0, handle, 0));
                    driver.require("cuMemRelease", cuda.cuMemRelease(handle));
                }
                MemorySegment access = access(arena, ordinal);
                driver.require("cuMemSetAccess", cuda.cuMemSetAccess(address, lengthBytes, access, 1));
                return new DeviceAllocation(driver, ordinal, address, lengthBytes, handleBytes, kind);
            }
        });
    }

    private static MemorySegment properties(Arena arena, int ordinal, int handleType) {
        MemorySegment properties = arena.allocate(CudaLayout.ALLOCATION_PROP_SIZE_BYTES, Long.BYTES);
        properties.set(JAVA_INT, CudaLayout.ALLOCATION_PROP_TYPE, CudaApi.CU_MEM_ALLOCATION_TYPE_PINNED);
        properties.set(JAVA_INT, CudaLayout.ALLOCATION_PROP_REQUESTEDHANDLETYPES, handleType);
        properties.set(JAVA_INT, CudaLayout.ALLOCATION_PROP_LOCATION_TYPE, CudaApi.CU_MEM_LOCATION_TYPE_DEVICE);
        properties.set(JAVA_INT, CudaLayout.ALLOCATION_PROP_LOCATION_ID, ordinal);
        properties.set(JAVA_BYTE, CudaLayout.ALLOCATION_PROP_GPUDIRECTRDMACAPABLE, (byte) 1);
        return properties;
    }

    private static MemorySegment access(Arena arena, int ordinal) {
        MemorySegment access = arena.allocate(CudaLayout.ACCESS_DESC_SIZE_BYTES, Integer.BYTES);
        access.set(JAVA_INT, CudaLayout.ACCESS_DESC_LOCATION_TYPE, CudaApi.CU_MEM_LOCATION_TYPE_DEVICE);
        access.set(JAVA_INT, CudaLayout.ACCESS_DESC_LOCATION_ID, ordinal);
        access.set(JAVA_INT, CudaLayout.ACCESS_DESC_FLAGS, CudaApi.CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        return access;
    }

    public long address() {
        return address;
    }

    public long lengthBytes() {
        return lengthBytes;
    }

    /** The memory from its first byte on. */
    public Memory.Device memory(long memoryBytes) {
        return memory(0, memoryBytes);
    }

    public Memory.Device memory(long offsetBytes, long memoryBytes) {
        return new Memory.Device(ordinal, address + offsetBytes, memoryBytes, handleKind);
    }

    @Override
    public void close() {
        driver.contexts().within(ordinal, () -> {
            if (stepBytes == 0) {
                driver.require("cuMemFree", driver.cuda().cuMemFree_v2(address));
                return;
            }
            for (long at = address; at < address + lengthBytes; at += stepBytes) {
                driver.require("cuMemUnmap", driver.cuda().cuMemUnmap(at, stepBytes));
            }
            driver.require("cuMemAddressFree", driver.cuda().cuMemAddressFree(address, lengthBytes));
        });
    }
}
