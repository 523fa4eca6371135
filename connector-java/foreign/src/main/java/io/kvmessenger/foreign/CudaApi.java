package io.kvmessenger.foreign;

/** Constants of <a href="https://docs.nvidia.com/cuda/cuda-driver-api/">NVIDIA's driver API</a>, under their C names. */
public final class CudaApi {
    // results
    public static final int CUDA_SUCCESS = 0;
    public static final int CUDA_ERROR_NOT_FOUND = 500;
    public static final int CUDA_ERROR_NOT_READY = 600;
    public static final int CUDA_ERROR_NOT_SUPPORTED = 801;

    // streams and events
    public static final int CU_STREAM_NON_BLOCKING = 1;
    public static final int CU_STREAM_CAPTURE_MODE_RELAXED = 2;
    public static final int CU_EVENT_DISABLE_TIMING = 2;
    public static final int CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1;

    // attributes of a device
    /** Whether the device is cache-coherent with the CPU, as over NVLink-C2C. */
    public static final int CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100;

    public static final int CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS = 117;
    public static final int CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118;
    public static final int CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124;

    // how a device sees what other hardware writes into its memory
    public static final int CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER = 100;
    public static final int CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST = 1;
    public static final int CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX = 0;
    public static final int CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES = 200;

    // attributes of a pointer
    public static final int CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9;
    public static final int CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10;
    public static final int CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14;

    // memory
    public static final int CU_MEMHOSTALLOC_PORTABLE = 1;
    public static final int CU_MEMHOSTREGISTER_PORTABLE = 1;
    public static final int CU_MEM_ALLOCATION_TYPE_PINNED = 1;
    public static final int CU_MEM_LOCATION_TYPE_DEVICE = 1;
    public static final int CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1;
    public static final int CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3;
    public static final int CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1;
    public static final int CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;

    private CudaApi() {}
}
