package io.kvmessenger.transfer.device;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.CudaApi;
import io.kvmessenger.foreign.CudaLayout;
import io.kvmessenger.foreign.LibCuda;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;

/**
 * A region of device memory that another process has exported, as this process's devices see it.
 *
 * <p>One thread. While open it keeps the memory alive, even after the end of its owner's process; it must be closed
 * only when no copy to or from it is queued any more.
 */
public final class ImportedMemory implements AutoCloseable {
    private final DeviceDriver driver;
    private final ExportForm form;
    /** The device in whose context it is mapped. */
    private final int ordinal;
    /** Address range of all parts; 0 for legacy memory. */
    private final long reservedAddress;
    /** By ordinal; 0 while the device has no access. */
    private long[] addresses = new long[0];

    private long[] partBytes = new long[0];
    private long mappedBytes;
    private boolean closed;

    /**
     * Begins to import; memory in parts is complete when {@link #addPart} has received all.
     *
     * @param ordinal of a device of this process that will copy to it
     * @throws DeviceFault when the driver refuses
     */
    public ImportedMemory(DeviceDriver driver, int ordinal, ExportForm form) {
        this.driver = driver;
        this.form = form;
        this.ordinal = ordinal;
        reservedAddress = form.isLegacy() ? 0 : driver.contexts().within(ordinal, this::reserve);
    }

    private long reserve() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(JAVA_LONG);
            driver.require(
                    "cuMemAddressReserve of " + form.mappedBytes() + " bytes",
                    driver.cuda().cuMemAddressReserve(out, form.mappedBytes(), 0, 0, 0));
            return out.get(JAVA_LONG, 0);
        }
    }

    /** Length of the region, not of the mapping around it. */
    public long lengthBytes() {
        return form.lengthBytes();
    }

    public boolean isComplete() {
        return partBytes.length == form.partCount();
    }

    /**
     * Maps the next part after the last one.
     *
     * @param fd stays the caller's
     * @throws IllegalArgumentException when there are more parts, or longer ones, than announced
     * @throws DeviceFault when the driver refuses, as for a length that is not the part's
     */
    public void addPart(int fd, long lengthBytes) {
        boolean last = partBytes.length == form.partCount() - 1;
        if (partBytes.length >= form.partCount()
                || lengthBytes <= 0
                || lengthBytes > form.mappedBytes() - mappedBytes
                || (last && lengthBytes != form.mappedBytes() - mappedBytes)) {
            throw new IllegalArgumentException("part " + partBytes.length + " has " + lengthBytes + " bytes, behind "
                    + mappedBytes + " of " + form);
        }
        driver.contexts().within(ordinal, () -> mapPart(fd, lengthBytes));
        mappedBytes += lengthBytes;
        partBytes = Arrays.copyOf(partBytes, partBytes.length + 1);
        partBytes[partBytes.length - 1] = lengthBytes;
    }

    private void mapPart(int fd, long lengthBytes) {
        LibCuda cuda = driver.cuda();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(JAVA_LONG);
            driver.require(
                    "cuMemImportFromShareableHandle",
                    cuda.cuMemImportFromShareableHandle(out, fd, CudaApi.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
            long handle = out.get(JAVA_LONG, 0);
            try {
                driver.require("cuMemMap", cuda.cuMemMap(reservedAddress + mappedBytes, lengthBytes, 0, handle, 0));
            } finally {
                // The mapping keeps it alive.
                cuda.cuMemRelease(handle);
            }
        }
    }

    /**
     * Start of the region for copies by a device, which gets access with the first call.
     *
     * @throws DeviceFault when the device cannot reach the other device's memory, or the memory is not what was
     *     announced
     */
    public long addressFor(int copier) {
        if (copier >= addresses.length) {
            addresses = Arrays.copyOf(addresses, copier + 1);
        }
        if (addresses[copier] == 0) {
            addresses[copier] = form.isLegacy() ? openLegacy(copier) : grant(copier);
        }
        return addresses[copier] + form.offsetBytes();
    }

    private long grant(int copier) {
        if (!isComplete()) {
            throw new IllegalStateException("imported memory of " + form + " is not complete");
        }
        driver.contexts().within(copier, () -> {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment access = arena.allocate(CudaLayout.ACCESS_DESC_SIZE_BYTES, Integer.BYTES);
                access.set(JAVA_INT, CudaLayout.ACCESS_DESC_LOCATION_TYPE, CudaApi.CU_MEM_LOCATION_TYPE_DEVICE);
                access.set(JAVA_INT, CudaLayout.ACCESS_DESC_LOCATION_ID, copier);
                access.set(JAVA_INT, CudaLayout.ACCESS_DESC_FLAGS, CudaApi.CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
                driver.require(
                        "cuMemSetAccess for device " + copier,
                        driver.cuda().cuMemSetAccess(reservedAddress, form.mappedBytes(), access, 1));
            }
        });
        return reservedAddress;
    }

    private long openLegacy(int copier) {
        return driver.contexts().within(copier, () -> {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment handle = arena.allocate(CudaLayout.IPC_HANDLE_SIZE_BYTES);
                handle.copyFrom(MemorySegment.ofArray(form.legacyHandle()));
                MemorySegment out = arena.allocate(JAVA_LONG);
                driver.require(
                        "cuIpcOpenMemHandle for device " + copier,
                        driver.cuda().cuIpcOpenMemHandle_v2(out, handle, CudaApi.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
                long address = out.get(JAVA_LONG, 0);
                requireLength(address, arena);
                return address;
            }
        });
    }

    /** Verifies the length with the driver: by the owner's claim alone, copies could run past the memory's end. */
    private void requireLength(long address, Arena arena) {
        MemorySegment base = arena.allocate(JAVA_LONG);
        MemorySegment size = arena.allocate(JAVA_LONG);
        int result = driver.cuda().cuMemGetAddressRange_v2(base, size, address);
        boolean fits = result == CudaApi.CUDA_SUCCESS
                && base.get(JAVA_LONG, 0) == address
                && size.get(JAVA_LONG, 0) >= form.offsetBytes() + form.lengthBytes();
        if (!fits) {
            driver.cuda().cuIpcCloseMemHandle(address);
            throw new DeviceFault("importing " + form, "memory of another length");
        }
    }

    /**
     * Gives back all that the driver takes.
     *
     * @throws DeviceFault when it refuses some of it
     */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        if (form.isLegacy()) {
            closeLegacy();
        } else {
            driver.contexts().within(ordinal, this::unmap);
        }
    }

    /** Asks for each device, although the driver refuses for another. */
    private void closeLegacy() {
        DeviceFault refused = null;
        for (int copier = 0; copier < addresses.length; copier++) {
            long address = addresses[copier];
            if (address == 0) {
                continue;
            }
            try {
                driver.contexts()
                        .within(
                                copier,
                                () -> driver.require(
                                        "cuIpcCloseMemHandle", driver.cuda().cuIpcCloseMemHandle(address)));
            } catch (DeviceFault e) {
                refused = refused == null ? e : refused;
            }
        }
        if (refused != null) {
            throw refused;
        }
    }

    private void unmap() {
        int result = CudaApi.CUDA_SUCCESS;
        long at = reservedAddress;
        for (long lengthBytes : partBytes) {
            result = Math.max(result, driver.cuda().cuMemUnmap(at, lengthBytes));
            at += lengthBytes;
        }
        driver.require("cuMemUnmap", result);
        driver.require("cuMemAddressFree", driver.cuda().cuMemAddressFree(reservedAddress, form.mappedBytes()));
    }
}
