package io.kvmessenger.transfer.device;

import io.kvmessenger.foreign.CudaApi;

/**
 * What NICs write into the memory of one device, and when the device sees it: a completion says that a write has reached the device,
 * which is less than that its kernels read it.
 *
 * <p>One thread, which belongs to the messenger.
 */
@FunctionalInterface
public interface NicWrites {
    /** The device orders them by itself: kernels that are launched after a completion see what it was for. */
    NicWrites ORDERED = () -> {};

    /**
     * Kernels that are launched from now on see all writes that NICs have reported. Waits for the device, and allocates nothing.
     *
     * @throws DeviceFault where the driver refuses: then nothing is known of what they see
     */
    void makeVisible();

    /** @throws DeviceFault where kernels of the device cannot be made to see them in time */
    static NicWrites of(DeviceDriver driver, int ordinal) {
        if (driver.attributeOf(CudaApi.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, ordinal)
                != 0) {
            // A NIC's completion and its writes part ways before such a device, and the driver says that there is
            // nothing to flush.
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

    /** For contexts of all processes: memory of another one may be the NIC's target here. */
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
