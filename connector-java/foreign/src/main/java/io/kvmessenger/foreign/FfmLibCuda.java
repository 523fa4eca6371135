package io.kvmessenger.foreign;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;

/** The libcuda of this machine, by downcalls. Thread-safe as far as the objects are. */
public final class FfmLibCuda implements LibCuda {
    /** The name by which the loader finds NVIDIA's driver. */
    public static final String DEFAULT_NAME = "libcuda.so.1";

    /** A struct of bytes, passed by value. */
    private static final MemoryLayout IPC_HANDLE =
            MemoryLayout.structLayout(MemoryLayout.sequenceLayout(CudaLayout.IPC_HANDLE_SIZE_BYTES, JAVA_BYTE));

    private static final MemoryLayout[] BATCH_OF_COPIES = {
        ADDRESS, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG
    };

    private final MethodHandle init;
    private final MethodHandle driverGetVersion;
    private final MethodHandle deviceGetCount;
    private final MethodHandle deviceGet;
    private final MethodHandle deviceGetAttribute;
    private final MethodHandle devicePrimaryCtxRetain;
    private final MethodHandle devicePrimaryCtxRelease;
    private final MethodHandle ctxSetCurrent;
    private final MethodHandle ctxGetCurrent;
    private final MethodHandle ctxPushCurrent;
    private final MethodHandle ctxPopCurrent;
    private final MethodHandle threadExchangeStreamCaptureMode;
    private final MethodHandle streamCreate;
    private final MethodHandle streamDestroy;
    private final MethodHandle streamSynchronize;
    private final MethodHandle eventCreate;
    private final MethodHandle eventDestroy;
    private final MethodHandle eventRecord;
    private final MethodHandle eventQuery;
    private final MethodHandle memcpyDtoHAsync;
    private final MethodHandle memcpyHtoDAsync;
    private final MethodHandle memcpyDtoDAsync;
    private final MethodHandle memcpyBatchAsync;
    private final MethodHandle memHostAlloc;
    private final MethodHandle memFreeHost;
    private final MethodHandle memHostRegister;
    private final MethodHandle memHostUnregister;
    private final MethodHandle memAlloc;
    private final MethodHandle memFree;
    private final MethodHandle memGetAddressRange;
    private final MethodHandle pointerGetAttribute;
    private final MethodHandle memGetAllocationGranularity;
    private final MethodHandle memCreate;
    private final MethodHandle memRelease;
    private final MethodHandle memAddressReserve;
    private final MethodHandle memAddressFree;
    private final MethodHandle memMap;
    private final MethodHandle memUnmap;
    private final MethodHandle memSetAccess;
    private final MethodHandle memRetainAllocationHandle;
    private final MethodHandle memExportToShareableHandle;
    private final MethodHandle memImportFromShareableHandle;
    private final MethodHandle ipcGetMemHandle;
    private final MethodHandle ipcOpenMemHandle;
    private final MethodHandle ipcCloseMemHandle;
    private final MethodHandle memGetHandleForAddressRange;
    private final MethodHandle flushGpuDirectRdmaWrites;
    private final MethodHandle getErrorName;

    /**
     * Loads the library; it stays loaded until the process ends.
     *
     * @param name its path, or a name for the loader
     * @throws UnsatisfiedLinkError saying in one line why it cannot be
     */
    public FfmLibCuda(String name) {
        LoadedLibrary library = new LoadedLibrary(name);
        init = result(library, "cuInit", JAVA_INT);
        driverGetVersion = result(library, "cuDriverGetVersion", ADDRESS);
        deviceGetCount = result(library, "cuDeviceGetCount", ADDRESS);
        deviceGet = result(library, "cuDeviceGet", ADDRESS, JAVA_INT);
        deviceGetAttribute = result(library, "cuDeviceGetAttribute", ADDRESS, JAVA_INT, JAVA_INT);
        devicePrimaryCtxRetain = result(library, "cuDevicePrimaryCtxRetain", ADDRESS, JAVA_INT);
        devicePrimaryCtxRelease = result(library, "cuDevicePrimaryCtxRelease_v2", JAVA_INT);
        ctxSetCurrent = result(library, "cuCtxSetCurrent", JAVA_LONG);
        ctxGetCurrent = result(library, "cuCtxGetCurrent", ADDRESS);
        ctxPushCurrent = result(library, "cuCtxPushCurrent_v2", JAVA_LONG);
        ctxPopCurrent = result(library, "cuCtxPopCurrent_v2", ADDRESS);
        threadExchangeStreamCaptureMode = result(library, "cuThreadExchangeStreamCaptureMode", ADDRESS);
        streamCreate = result(library, "cuStreamCreate", ADDRESS, JAVA_INT);
        streamDestroy = result(library, "cuStreamDestroy_v2", JAVA_LONG);
        streamSynchronize = result(library, "cuStreamSynchronize", JAVA_LONG);
        eventCreate = result(library, "cuEventCreate", ADDRESS, JAVA_INT);
        eventDestroy = result(library, "cuEventDestroy_v2", JAVA_LONG);
        eventRecord = result(library, "cuEventRecord", JAVA_LONG, JAVA_LONG);
        eventQuery = result(library, "cuEventQuery", JAVA_LONG);
        memcpyDtoHAsync = result(library, "cuMemcpyDtoHAsync_v2", JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG);
        memcpyHtoDAsync = result(library, "cuMemcpyHtoDAsync_v2", JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG);
        memcpyDtoDAsync = result(library, "cuMemcpyDtoDAsync_v2", JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG);
        memcpyBatchAsync = optional(library, "cuMemcpyBatchAsync_v2", BATCH_OF_COPIES);
        memHostAlloc = result(library, "cuMemHostAlloc", ADDRESS, JAVA_LONG, JAVA_INT);
        memFreeHost = result(library, "cuMemFreeHost", JAVA_LONG);
        memHostRegister = result(library, "cuMemHostRegister_v2", JAVA_LONG, JAVA_LONG, JAVA_INT);
        memHostUnregister = result(library, "cuMemHostUnregister", JAVA_LONG);
        memAlloc = result(library, "cuMemAlloc_v2", ADDRESS, JAVA_LONG);
        memFree = result(library, "cuMemFree_v2", JAVA_LONG);
        memGetAddressRange = result(library, "cuMemGetAddressRange_v2", ADDRESS, ADDRESS, JAVA_LONG);
        pointerGetAttribute = result(library, "cuPointerGetAttribute", ADDRESS, JAVA_INT, JAVA_LONG);
        memGetAllocationGranularity = result(library, "cuMemGetAllocationGranularity", ADDRESS, ADDRESS, JAVA_INT);
        memCreate = result(library, "cuMemCreate", ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG);
        memRelease = result(library, "cuMemRelease", JAVA_LONG);
        memAddressReserve = result(library, "cuMemAddressReserve", ADDRESS, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG);
        memAddressFree = result(library, "cuMemAddressFree", JAVA_LONG, JAVA_LONG);
        memMap = result(library, "cuMemMap", JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG);
        memUnmap = result(library, "cuMemUnmap", JAVA_LONG, JAVA_LONG);
        memSetAccess = result(library, "cuMemSetAccess", JAVA_LONG, JAVA_LONG, ADDRESS, JAVA_LONG);
        memRetainAllocationHandle = result(library, "cuMemRetainAllocationHandle", ADDRESS, JAVA_LONG);
        memExportToShareableHandle =
                result(library, "cuMemExportToShareableHandle", ADDRESS, JAVA_LONG, JAVA_INT, JAVA_LONG);
        memImportFromShareableHandle = result(library, "cuMemImportFromShareableHandle", ADDRESS, JAVA_LONG, JAVA_INT);
        ipcGetMemHandle = result(library, "cuIpcGetMemHandle", ADDRESS, JAVA_LONG);
        ipcOpenMemHandle = result(library, "cuIpcOpenMemHandle_v2", ADDRESS, IPC_HANDLE, JAVA_INT);
        ipcCloseMemHandle = result(library, "cuIpcCloseMemHandle", JAVA_LONG);
        memGetHandleForAddressRange =
                optional(library, "cuMemGetHandleForAddressRange", ADDRESS, JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_LONG);
        flushGpuDirectRdmaWrites = optional(library, "cuFlushGPUDirectRDMAWrites", JAVA_INT, JAVA_INT);
        getErrorName = result(library, "cuGetErrorName", JAVA_INT, ADDRESS);
    }

    @Override
    public int cuInit(int flags) {
        try {
            return (int) init.invokeExact(flags);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuDriverGetVersion(MemorySegment version) {
        try {
            return (int) driverGetVersion.invokeExact(version);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuDeviceGetCount(MemorySegment count) {
        try {
            return (int) deviceGetCount.invokeExact(count);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuDeviceGet(MemorySegment device, int ordinal) {
        try {
            return (int) deviceGet.invokeExact(device, ordinal);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuDeviceGetAttribute(MemorySegment value, int attribute, int device) {
        try {
            return (int) deviceGetAttribute.invokeExact(value, attribute, device);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuDevicePrimaryCtxRetain(MemorySegment context, int device) {
        try {
            return (int) devicePrimaryCtxRetain.invokeExact(context, device);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuDevicePrimaryCtxRelease_v2(int device) {
        try {
            return (int) devicePrimaryCtxRelease.invokeExact(device);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuCtxSetCurrent(long context) {
        try {
            return (int) ctxSetCurrent.invokeExact(context);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuCtxGetCurrent(MemorySegment context) {
        try {
            return (int) ctxGetCurrent.invokeExact(context);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuCtxPushCurrent_v2(long context) {
        try {
            return (int) ctxPushCurrent.invokeExact(context);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuCtxPopCurrent_v2(MemorySegment context) {
        try {
            return (int) ctxPopCurrent.invokeExact(context);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuThreadExchangeStreamCaptureMode(MemorySegment mode) {
        try {
            return (int) threadExchangeStreamCaptureMode.invokeExact(mode);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuStreamCreate(MemorySegment stream, int flags) {
        try {
            return (int) streamCreate.invokeExact(stream, flags);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuStreamDestroy_v2(long stream) {
        try {
            return (int) streamDestroy.invokeExact(stream);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuStreamSynchronize(long stream) {
        try {
            return (int) streamSynchronize.invokeExact(stream);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuEventCreate(MemorySegment event, int flags) {
        try {
            return (int) eventCreate.invokeExact(event, flags);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuEventDestroy_v2(long event) {
        try {
            return (int) eventDestroy.invokeExact(event);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuEventRecord(long event, long stream) {
        try {
            return (int) eventRecord.invokeExact(event, stream);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuEventQuery(long event) {
        try {
            return (int) eventQuery.invokeExact(event);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemcpyDtoHAsync_v2(long target, long source, long lengthBytes, long stream) {
        try {
            return (int) memcpyDtoHAsync.invokeExact(target, source, lengthBytes, stream);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemcpyHtoDAsync_v2(long target, long source, long lengthBytes, long stream) {
        try {
            return (int) memcpyHtoDAsync.invokeExact(target, source, lengthBytes, stream);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemcpyDtoDAsync_v2(long target, long source, long lengthBytes, long stream) {
        try {
            return (int) memcpyDtoDAsync.invokeExact(target, source, lengthBytes, stream);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemcpyBatchAsync_v2(
            MemorySegment targets,
            MemorySegment sources,
            MemorySegment lengthsBytes,
            long count,
            MemorySegment attributes,
            MemorySegment firstOfAttributes,
            long attributesCount,
            long stream) {
        if (memcpyBatchAsync == null) {
            return CudaApi.CUDA_ERROR_NOT_FOUND;
        }
        try {
            return (int) memcpyBatchAsync.invokeExact(
                    targets, sources, lengthsBytes, count, attributes, firstOfAttributes, attributesCount, stream);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemHostAlloc(MemorySegment address, long lengthBytes, int flags) {
        try {
            return (int) memHostAlloc.invokeExact(address, lengthBytes, flags);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemFreeHost(long address) {
        try {
            return (int) memFreeHost.invokeExact(address);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemHostRegister_v2(long address, long lengthBytes, int flags) {
        try {
            return (int) memHostRegister.invokeExact(address, lengthBytes, flags);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemHostUnregister(long address) {
        try {
            return (int) memHostUnregister.invokeExact(address);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemAlloc_v2(MemorySegment address, long lengthBytes) {
        try {
            return (int) memAlloc.invokeExact(address, lengthBytes);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemFree_v2(long address) {
        try {
            return (int) memFree.invokeExact(address);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemGetAddressRange_v2(MemorySegment base, MemorySegment lengthBytes, long address) {
        try {
            return (int) memGetAddressRange.invokeExact(base, lengthBytes, address);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuPointerGetAttribute(MemorySegment value, int attribute, long address) {
        try {
            return (int) pointerGetAttribute.invokeExact(value, attribute, address);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemGetAllocationGranularity(MemorySegment granularityBytes, MemorySegment properties, int option) {
        try {
            return (int) memGetAllocationGranularity.invokeExact(granularityBytes, properties, option);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemCreate(MemorySegment handle, long lengthBytes, MemorySegment properties, long flags) {
        try {
            return (int) memCreate.invokeExact(handle, lengthBytes, properties, flags);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemRelease(long handle) {
        try {
            return (int) memRelease.invokeExact(handle);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemAddressReserve(MemorySegment address, long lengthBytes, long alignment, long hint, long flags) {
        try {
            return (int) memAddressReserve.invokeExact(address, lengthBytes, alignment, hint, flags);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemAddressFree(long address, long lengthBytes) {
        try {
            return (int) memAddressFree.invokeExact(address, lengthBytes);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemMap(long address, long lengthBytes, long offset, long handle, long flags) {
        try {
            return (int) memMap.invokeExact(address, lengthBytes, offset, handle, flags);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemUnmap(long address, long lengthBytes) {
        try {
            return (int) memUnmap.invokeExact(address, lengthBytes);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemSetAccess(long address, long lengthBytes, MemorySegment descriptions, long count) {
        try {
            return (int) memSetAccess.invokeExact(address, lengthBytes, descriptions, count);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemRetainAllocationHandle(MemorySegment handle, long address) {
        try {
            return (int) memRetainAllocationHandle.invokeExact(handle, address);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemExportToShareableHandle(MemorySegment exported, long handle, int type, long flags) {
        try {
            return (int) memExportToShareableHandle.invokeExact(exported, handle, type, flags);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemImportFromShareableHandle(MemorySegment handle, long exported, int type) {
        try {
            return (int) memImportFromShareableHandle.invokeExact(handle, exported, type);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuIpcGetMemHandle(MemorySegment handle, long address) {
        try {
            return (int) ipcGetMemHandle.invokeExact(handle, address);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuIpcOpenMemHandle_v2(MemorySegment address, MemorySegment handle, int flags) {
        try {
            return (int) ipcOpenMemHandle.invokeExact(address, handle, flags);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuIpcCloseMemHandle(long address) {
        try {
            return (int) ipcCloseMemHandle.invokeExact(address);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuMemGetHandleForAddressRange(
            MemorySegment handle, long address, long lengthBytes, int type, long flags) {
        if (memGetHandleForAddressRange == null) {
            return CudaApi.CUDA_ERROR_NOT_SUPPORTED;
        }
        try {
            return (int) memGetHandleForAddressRange.invokeExact(handle, address, lengthBytes, type, flags);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public int cuFlushGPUDirectRDMAWrites(int target, int scope) {
        if (flushGpuDirectRdmaWrites == null) {
            return CudaApi.CUDA_ERROR_NOT_SUPPORTED;
        }
        try {
            return (int) flushGpuDirectRdmaWrites.invokeExact(target, scope);
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    @Override
    public String cuGetErrorName(int result) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment name = arena.allocate(JAVA_LONG);
            int found = (int) getErrorName.invokeExact(result, name);
            return found == 0 ? ForeignMemory.stringAt(name.get(JAVA_LONG, 0)) : "error " + result;
        } catch (Throwable t) {
            throw FfmLibC.unexpected(t);
        }
    }

    private static MethodHandle result(LoadedLibrary library, String name, MemoryLayout... arguments) {
        return library.symbol(name, FunctionDescriptor.of(JAVA_INT, arguments));
    }

    /** Null if the library is older than the function. */
    private static MethodHandle optional(LoadedLibrary library, String name, MemoryLayout... arguments) {
        return library.optional(name, FunctionDescriptor.of(JAVA_INT, arguments));
    }
}
