package io.kvmessenger.foreign;

import io.kvmessenger.bindings.ByValue;
import io.kvmessenger.bindings.C;
import io.kvmessenger.bindings.NativeLibrary;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The functions of NVIDIA's driver, libcuda, that this project calls, under their exported names: if there are several
 * versions, the name without a suffix is an older interface. See
 * <a href="https://docs.nvidia.com/cuda/cuda-driver-api/">the manual</a>.
 *
 * <p>Contexts, streams, events, handles and memory are identified by numbers. Each function returns a {@code CUresult},
 * 0 on success. Safe from any thread; most require a context that is current on the calling one.
 */
@NativeLibrary(file = "libcuda.so.1")
public interface LibCuda {
    // the driver, its devices and their contexts

    int cuInit(int flags);

    int cuDeviceGetCount(MemorySegment count);

    int cuDeviceGet(MemorySegment device, int ordinal);

    int cuDeviceGetAttribute(MemorySegment value, int attribute, int device);

    int cuDevicePrimaryCtxRetain(MemorySegment context, int device);

    int cuDevicePrimaryCtxRelease_v2(int device);

    int cuCtxSetCurrent(long context);

    int cuCtxGetCurrent(MemorySegment context);

    int cuCtxPushCurrent_v2(long context);

    int cuCtxPopCurrent_v2(MemorySegment context);

    // streams and events

    /**
     * Exchanges the calling thread's mode for calls beside a capture.
     *
     * @param mode a {@code CUstreamCaptureMode}; receives the mode before
     */
    int cuThreadExchangeStreamCaptureMode(MemorySegment mode);

    int cuStreamCreate(MemorySegment stream, int flags);

    int cuStreamDestroy_v2(long stream);

    int cuStreamSynchronize(long stream);

    int cuEventCreate(MemorySegment event, int flags);

    int cuEventDestroy_v2(long event);

    int cuEventRecord(long event, long stream);

    int cuEventQuery(long event);

    // copies

    int cuMemcpyDtoHAsync_v2(long target, long source, long lengthBytes, long stream);

    int cuMemcpyHtoDAsync_v2(long target, long source, long lengthBytes, long stream);

    int cuMemcpyDtoDAsync_v2(long target, long source, long lengthBytes, long stream);

    /** Copies in no order; {@link CudaApi#CUDA_ERROR_NOT_FOUND} if the driver is older than CUDA 13. */
    @C(optional = true, otherwise = CudaApi.CUDA_ERROR_NOT_FOUND)
    int cuMemcpyBatchAsync_v2(
            MemorySegment targets,
            MemorySegment sources,
            MemorySegment lengthsBytes,
            long count,
            MemorySegment attributes,
            MemorySegment firstOfAttributes,
            long attributesCount,
            long stream);

    // kernels

    /**
     * Compiles a module for the current context's device.
     *
     * @param image PTX, ended by a zero
     */
    int cuModuleLoadData(MemorySegment module, MemorySegment image);

    int cuModuleUnload(long module);

    int cuModuleGetFunction(MemorySegment function, long module, MemorySegment name);

    /** @param parameters the address of each; the driver copies what is there before it returns */
    int cuLaunchKernel(
            long function,
            int gridX,
            int gridY,
            int gridZ,
            int blockX,
            int blockY,
            int blockZ,
            int sharedBytes,
            long stream,
            MemorySegment parameters,
            MemorySegment extra);

    // page-locked host memory

    int cuMemHostAlloc(MemorySegment address, long lengthBytes, int flags);

    int cuMemFreeHost(long address);

    int cuMemHostRegister_v2(long address, long lengthBytes, int flags);

    int cuMemHostUnregister(long address);

    /** The address under which kernels reach page-locked memory. */
    int cuMemHostGetDevicePointer_v2(MemorySegment seen, long address, int flags);

    // memory of a device

    int cuMemAlloc_v2(MemorySegment address, long lengthBytes);

    int cuMemFree_v2(long address);

    /** The range of the allocation, or of one handle's mapping, that contains the address. */
    int cuMemGetAddressRange_v2(MemorySegment base, MemorySegment lengthBytes, long address);

    int cuPointerGetAttribute(MemorySegment value, int attribute, long address);

    int cuMemCreate(MemorySegment handle, long lengthBytes, MemorySegment properties, long flags);

    int cuMemRelease(long handle);

    int cuMemAddressReserve(MemorySegment address, long lengthBytes, long alignment, long hint, long flags);

    int cuMemAddressFree(long address, long lengthBytes);

    int cuMemMap(long address, long lengthBytes, long offset, long handle, long flags);

    int cuMemUnmap(long address, long lengthBytes);

    int cuMemSetAccess(long address, long lengthBytes, MemorySegment descriptions, long count);

    /** Fails for memory that cuMemCreate did not make. */
    int cuMemRetainAllocationHandle(MemorySegment handle, long address);

    // memory of a device as other hardware accesses it

    /**
     * {@link CudaApi#CUDA_ERROR_NOT_SUPPORTED} if the driver is older than CUDA 11.7.
     *
     * @param handle receives a descriptor, which the caller has to close
     */
    @C(optional = true, otherwise = CudaApi.CUDA_ERROR_NOT_SUPPORTED)
    int cuMemGetHandleForAddressRange(MemorySegment handle, long address, long lengthBytes, int type, long flags);

    /** {@link CudaApi#CUDA_ERROR_NOT_SUPPORTED} if the driver is older than CUDA 11.3. */
    @C(optional = true, otherwise = CudaApi.CUDA_ERROR_NOT_SUPPORTED)
    int cuFlushGPUDirectRDMAWrites(int target, int scope);

    // memory between processes

    int cuMemExportToShareableHandle(MemorySegment exported, long handle, int type, long flags);

    /** @param exported the descriptor itself, by value; it stays the caller's */
    int cuMemImportFromShareableHandle(MemorySegment handle, long exported, int type);

    int cuIpcGetMemHandle(MemorySegment handle, long address);

    int cuIpcOpenMemHandle_v2(
            MemorySegment address, @ByValue(CudaLayout.IPC_HANDLE_SIZE_BYTES) MemorySegment handle, int flags);

    int cuIpcCloseMemHandle(long address);

    /** @param name receives the address of the driver's name for a result */
    int cuGetErrorName(int result, MemorySegment name);

    /** The driver's name for a result; never empty. */
    default String cuGetErrorName(int result) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment name = arena.allocate(ValueLayout.JAVA_LONG);
            return cuGetErrorName(result, name) == CudaApi.CUDA_SUCCESS
                    ? ForeignMemory.stringAt(name.get(ValueLayout.JAVA_LONG, 0))
                    : "error " + result;
        }
    }
}
