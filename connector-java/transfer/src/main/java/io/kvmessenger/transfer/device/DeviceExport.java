package io.kvmessenger.transfer.device;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.CudaApi;
import io.kvmessenger.foreign.CudaLayout;
import io.kvmessenger.foreign.LibCuda;
import io.kvmessenger.transfer.Memory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;

/**
 * How other processes of this host can access a region of device memory. This depends on what the driver reports about
 * the address range, not on the owner's claim: memory from cuMemCreate is exported handle by handle as descriptors,
 * memory from cudaMalloc by a legacy handle, any other not at all.
 *
 * <p>Immutable; safe from any thread. It does not own the memory.
 */
public final class DeviceExport {
    private final DeviceDriver driver;
    private final int ordinal;
    private final ExportForm form;
    /** Start of each handle's mapping, ascending, and the end of the last one. */
    private final long[] partBounds;

    private DeviceExport(DeviceDriver driver, int ordinal, ExportForm form, long[] partBounds) {
        this.driver = driver;
        this.ordinal = ordinal;
        this.form = form;
        this.partBounds = partBounds;
    }

    /**
     * Examines device memory of this process.
     *
     * @return null if other processes cannot access all of it
     * @throws DeviceFault when the driver does not know the memory
     */
    public static DeviceExport of(DeviceDriver driver, Memory.Device memory) {
        return driver.contexts().within(memory.ordinal(), () -> {
            try (Arena arena = Arena.ofConfined()) {
                return look(driver, memory, arena);
            }
        });
    }

    private static DeviceExport look(DeviceDriver driver, Memory.Device memory, Arena arena) {
        MemorySegment base = arena.allocate(JAVA_LONG);
        MemorySegment size = arena.allocate(JAVA_LONG);
        long begin = memory.address();
        long end = begin + memory.lengthBytes();
        boolean legacy = isLegacy(driver, begin, arena);
        long[] bounds = new long[1];
        long at = begin;
        for (int i = 0; at < end; i++) {
            if (legacy ? !isLegacy(driver, at, arena) || i > 0 : !isExportable(driver, at, arena)) {
                return null;
            }
            driver.require("cuMemGetAddressRange", driver.cuda().cuMemGetAddressRange_v2(base, size, at));
            if (i > 0 && base.get(JAVA_LONG, 0) != at) {
                return null;
            }
            at = base.get(JAVA_LONG, 0) + size.get(JAVA_LONG, 0);
            bounds = Arrays.copyOf(bounds, i + 2);
            bounds[i] = base.get(JAVA_LONG, 0);
            bounds[i + 1] = at;
        }
        ExportForm form = new ExportForm(
                memory.lengthBytes(),
                begin - bounds[0],
                at - bounds[0],
                legacy ? ExportForm.LEGACY : bounds.length - 1,
                legacy ? legacyHandle(driver, bounds[0]) : new byte[(int) CudaLayout.IPC_HANDLE_SIZE_BYTES]);
        return new DeviceExport(driver, memory.ordinal(), form, bounds);
    }

    private static boolean isLegacy(DeviceDriver driver, long address, Arena arena) {
        return attribute(driver, CudaApi.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address, arena) != 0;
    }

    private static boolean isExportable(DeviceDriver driver, long address, Arena arena) {
        int types = attribute(driver, CudaApi.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address, arena);
        return (types & CudaApi.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
    }

    private static int attribute(DeviceDriver driver, int attribute, long address, Arena arena) {
        MemorySegment value = arena.allocate(JAVA_LONG);
        driver.require(
                "cuPointerGetAttribute of address " + Long.toHexString(address),
                driver.cuda().cuPointerGetAttribute(value, attribute, address));
        return value.get(JAVA_INT, 0);
    }

    private static byte[] legacyHandle(DeviceDriver driver, long base) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment handle = arena.allocate(CudaLayout.IPC_HANDLE_SIZE_BYTES);
            driver.require("cuIpcGetMemHandle", driver.cuda().cuIpcGetMemHandle(handle, base));
            return handle.toArray(JAVA_BYTE);
        }
    }

    /** The first data that an importer needs. */
    public ExportForm form() {
        return form;
    }

    public long partBytes(int part) {
        return partBounds[part + 1] - partBounds[part];
    }

    /**
     * A descriptor of one handle's memory, which the caller has to close.
     *
     * @throws DeviceFault when the driver refuses
     */
    public int openPart(int part) {
        LibCuda cuda = driver.cuda();
        return driver.contexts().within(ordinal, () -> {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment out = arena.allocate(JAVA_LONG);
                driver.require("cuMemRetainAllocationHandle", cuda.cuMemRetainAllocationHandle(out, partBounds[part]));
                long handle = out.get(JAVA_LONG, 0);
                try {
                    driver.require(
                            "cuMemExportToShareableHandle",
                            cuda.cuMemExportToShareableHandle(
                                    out, handle, CudaApi.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
                    return out.get(JAVA_INT, 0);
                } finally {
                    cuda.cuMemRelease(handle);
                }
            }
        });
    }
}
