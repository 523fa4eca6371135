package io.kvmessenger.transfer.device;

import io.kvmessenger.foreign.CudaApi;

/**
 * When NIC writes into the memory of one device become visible to its kernels: a completion says only that a write has
 * reached the device.
 *
 * <p>One thread, which belongs to the messenger.
 */
@FunctionalInterface
public interface NicWrites {
    /** The device orders them itself: kernels launched after a completion see the completed write. */
    NicWrites ORDERED = () -> {};

    /**
     * Makes all writes that NICs have reported visible to kernels launched from now on. Waits for the device, and
     * allocates nothing.
     *
     * @throws DeviceFault when the driver refuses: then it is unknown what kernels see
     */
    void makeVisible();

    /** @throws DeviceFault when visibility to the device's kernels cannot be ensured in time */
    static NicWrites of(DeviceDriver driver, int ordinal) {
        if (driver.attributeOf(CudaApi.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, ordinal)
                != 0) {
            // A NIC's completion and its writes take different paths to such a device, and the driver reports nothing
            // to flush.
            throw new DeviceFault(
                    "ordering what a NIC writes into device " + ordinal,
                    "a device that is coherent with the processor");
        }
        int ordering = driver.attributeOf(CudaApi.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, ordinal);
        if (ordering >= CudaApi.CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER) {
            return ORDERED;
        }
        int options = driver.attributeOf(CudaApi.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, ordinal);
        if ((options & CudaApi.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) == 0) {
            throw new DeviceFault(
                    "ordering what a NIC writes into device " + ordinal, "a device that does not, and flushes nothing");
        }
        long context = driver.contexts().of(ordinal);
        return () -> flush(driver, context);
    }

    /** For contexts of all processes: the NIC's target here may be memory of another one. */
    private static void flush(DeviceDriver driver, long context) {
        driver.contexts().makeCurrent(context);
        int result = driver.cuda()
                .cuFlushGPUDirectRDMAWrites(
                        CudaApi.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                        CudaApi.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES);
        if (result != CudaApi.CUDA_SUCCESS) {
            driver.require("cuFlushGPUDirectRDMAWrites", result);
        }
    }
}
