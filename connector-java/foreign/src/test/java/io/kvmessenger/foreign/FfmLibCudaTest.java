package io.kvmessenger.foreign;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.Test;

/** Against the stand-in for NVIDIA's driver, which refuses flags, sizes and structs that a real one would refuse. */
final class FfmLibCudaTest {
    private static final String HOME = System.getProperty("kvmessenger.cuda-stand-in", "");
    private static final int NO_RESULT = -1;
    private static final long GRANULE_BYTES = 2 << 20;

    @Test
    void shouldSayInOneLineWhyThereIsNone() {
        assertThatThrownBy(() -> new FfmLibCuda("libcuda-that-nothing-has.so.1"))
                .isInstanceOf(UnsatisfiedLinkError.class)
                .hasMessageContainingAll("libcuda-that-nothing-has.so.1", "cannot open shared object file")
                .hasMessageNotContaining("\n");
    }

    @Test
    void shouldSayWhatALibraryLacks() {
        assertThatThrownBy(() -> new FfmLibCuda("libc.so.6"))
                .isInstanceOf(UnsatisfiedLinkError.class)
                .hasMessageContaining("cuInit");
    }

    @Test
    void shouldNameAResult() {
        LibCuda cuda = standIn();
        assertThat(cuda.cuGetErrorName(CudaApi.CUDA_ERROR_NOT_READY)).isEqualTo("CUDA_ERROR_NOT_READY");
        assertThat(cuda.cuGetErrorName(NO_RESULT)).isEqualTo("error -1");
    }

    /** From the allocation's properties to its descriptor and back: a wrong offset, or argument, fails a call. */
    @Test
    void shouldMapWhatItExported() {
        LibCuda cuda = standIn();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.JAVA_LONG);
            makeCurrent(cuda, out);
            long first = create(cuda, arena, out);
            MemorySegment exported = arena.allocate(ValueLayout.JAVA_INT);
            ok(cuda.cuMemExportToShareableHandle(exported, first, CudaApi.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
            int fd = exported.get(ValueLayout.JAVA_INT, 0);
            ok(cuda.cuMemImportFromShareableHandle(out, fd, CudaApi.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
            long second = out.get(ValueLayout.JAVA_LONG, 0);
            assertThat(new FfmLibC().close(fd)).isZero();
            long firstAt = map(cuda, arena, out, first);
            long secondAt = map(cuda, arena, out, second);

            ok(cuda.cuStreamCreate(out, CudaApi.CU_STREAM_NON_BLOCKING));
            long stream = out.get(ValueLayout.JAVA_LONG, 0);
            MemorySegment given = arena.allocateFrom("the same bytes");
            MemorySegment heard = arena.allocate(given.byteSize());
            ok(cuda.cuMemcpyHtoDAsync_v2(firstAt + 4096, given.address(), given.byteSize(), stream));
            ok(cuda.cuMemcpyDtoHAsync_v2(heard.address(), secondAt + 4096, given.byteSize(), stream));
            ok(cuda.cuStreamSynchronize(stream));
            assertThat(heard.getString(0)).isEqualTo("the same bytes");

            ok(cuda.cuStreamDestroy_v2(stream));
            for (long at : new long[] {firstAt, secondAt}) {
                ok(cuda.cuMemUnmap(at, GRANULE_BYTES));
                ok(cuda.cuMemAddressFree(at, GRANULE_BYTES));
            }
            ok(cuda.cuDevicePrimaryCtxRelease_v2(0));
        }
    }

    /** A handle by value is 64 bytes on the stack: the stand-in looks for its own mark in it. */
    @Test
    void shouldPassALegacyHandleByValue() {
        LibCuda cuda = standIn();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.JAVA_LONG);
            makeCurrent(cuda, out);
            ok(cuda.cuMemAlloc_v2(out, GRANULE_BYTES));
            long address = out.get(ValueLayout.JAVA_LONG, 0);
            MemorySegment handle = arena.allocate(CudaLayout.IPC_HANDLE_SIZE_BYTES);
            ok(cuda.cuIpcGetMemHandle(handle, address));
            int ownProcess = cuda.cuIpcOpenMemHandle_v2(out, handle, CudaApi.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
            assertThat(ownProcess).isEqualTo(201);
            handle.set(ValueLayout.JAVA_BYTE, 0, (byte) 0);
            assertThat(cuda.cuIpcOpenMemHandle_v2(out, handle, CudaApi.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
                    .isEqualTo(1);
            ok(cuda.cuMemFree_v2(address));
            ok(cuda.cuDevicePrimaryCtxRelease_v2(0));
        }
    }

    /** Whole pages only, and of memory that was made for it: a wrong argument fails a call. */
    @Test
    void shouldExportMemoryForOtherHardware() {
        LibCuda cuda = standIn();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(ValueLayout.JAVA_LONG);
            makeCurrent(cuda, out);
            ok(cuda.cuMemAlloc_v2(out, GRANULE_BYTES));
            long address = out.get(ValueLayout.JAVA_LONG, 0);
            MemorySegment exported = arena.allocate(ValueLayout.JAVA_INT);
            int type = CudaApi.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
            long pageBytes = ForeignMemory.PAGE_BYTES;
            ok(cuda.cuMemGetHandleForAddressRange(exported, address + pageBytes, 2 * pageBytes, type, 0));
            assertThat(new FfmLibC().close(exported.get(ValueLayout.JAVA_INT, 0)))
                    .isZero();
            assertThat(cuda.cuMemGetHandleForAddressRange(exported, address + 1, pageBytes, type, 0))
                    .isEqualTo(1);
            assertThat(cuda.cuMemGetHandleForAddressRange(exported, address, pageBytes + 1, type, 0))
                    .isEqualTo(1);
            assertThat(cuda.cuMemGetHandleForAddressRange(exported, address, 2 * GRANULE_BYTES, type, 0))
                    .isEqualTo(CudaApi.CUDA_ERROR_NOT_SUPPORTED);
            int target = CudaApi.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
            ok(cuda.cuFlushGPUDirectRDMAWrites(target, CudaApi.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES));
            assertThat(cuda.cuFlushGPUDirectRDMAWrites(target, 1)).isEqualTo(1);
            ok(cuda.cuMemFree_v2(address));
            ok(cuda.cuDevicePrimaryCtxRelease_v2(0));
        }
    }

    private static void makeCurrent(LibCuda cuda, MemorySegment out) {
        ok(cuda.cuInit(0));
        ok(cuda.cuDevicePrimaryCtxRetain(out, 0));
        ok(cuda.cuCtxSetCurrent(out.get(ValueLayout.JAVA_LONG, 0)));
    }

    private static long create(LibCuda cuda, Arena arena, MemorySegment out) {
        MemorySegment properties = arena.allocate(CudaLayout.ALLOCATION_PROP_SIZE_BYTES, Long.BYTES);
        properties.set(ValueLayout.JAVA_INT, CudaLayout.ALLOCATION_PROP_TYPE, CudaApi.CU_MEM_ALLOCATION_TYPE_PINNED);
        properties.set(
                ValueLayout.JAVA_INT,
                CudaLayout.ALLOCATION_PROP_REQUESTEDHANDLETYPES,
                CudaApi.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        properties.set(
                ValueLayout.JAVA_INT, CudaLayout.ALLOCATION_PROP_LOCATION_TYPE, CudaApi.CU_MEM_LOCATION_TYPE_DEVICE);
        ok(cuda.cuMemCreate(out, GRANULE_BYTES, properties, 0));
        return out.get(ValueLayout.JAVA_LONG, 0);
    }

    private static long map(LibCuda cuda, Arena arena, MemorySegment out, long handle) {
        ok(cuda.cuMemAddressReserve(out, GRANULE_BYTES, 0, 0, 0));
        long address = out.get(ValueLayout.JAVA_LONG, 0);
        ok(cuda.cuMemMap(address, GRANULE_BYTES, 0, handle, 0));
        ok(cuda.cuMemRelease(handle));
        MemorySegment access = arena.allocate(CudaLayout.ACCESS_DESC_SIZE_BYTES, Integer.BYTES);
        access.set(ValueLayout.JAVA_INT, CudaLayout.ACCESS_DESC_LOCATION_TYPE, CudaApi.CU_MEM_LOCATION_TYPE_DEVICE);
        access.set(ValueLayout.JAVA_INT, CudaLayout.ACCESS_DESC_FLAGS, CudaApi.CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        ok(cuda.cuMemSetAccess(address, GRANULE_BYTES, access, 1));
        return address;
    }

    private static void ok(int result) {
        assertThat(result).isZero();
    }

    private static LibCuda standIn() {
        assumeTrue(
                !HOME.isEmpty(),
                "no stand-in for NVIDIA's driver: -Dkvmessenger.cuda-stand-in names no folder of it,"
                        + " examples/setup/find-cuda-stand-in does");
        return new FfmLibCuda(HOME + "/libcuda.so.1");
    }
}
