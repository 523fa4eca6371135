package io.kvmessenger.transfer.device;

import io.kvmessenger.foreign.CudaApi;
import io.kvmessenger.foreign.FfmLibCuda;
import io.kvmessenger.foreign.LibCuda;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;

/**
 * NVIDIA's driver as found on this machine, and the contexts in which this process uses its devices.
 *
 * <p>Safe from any thread. It allocates no device memory, and queues nothing but the trial of a kernel; it uses primary
 * contexts only, which an engine shares.
 */
public final class DeviceDriver implements AutoCloseable {
    /** Loaded unless a test selects another. */
    public static final String LIBRARY = FfmLibCuda.DEFAULT_NAME;

    private final LibCuda cuda;
    private final int deviceCount;
    private final DeviceContexts contexts;
    private final CopyKernels kernels;

    private DeviceDriver(LibCuda cuda, int deviceCount, boolean copiesByKernel) {
        this.cuda = cuda;
        this.deviceCount = deviceCount;
        contexts = new DeviceContexts(this);
        kernels = new CopyKernels(this, copiesByKernel);
    }

    /**
     * Loads the driver, whose devices copy by the copy engine alone.
     *
     * @param library its path, or a name for the loader
     */
    public static DeviceDriver open(String library) throws NoDeviceException {
        return open(library, false);
    }

    /**
     * Loads the driver.
     *
     * @param library its path, or a name for the loader
     * @param copiesByKernel whether many small runs are copied by a kernel where a device takes it
     */
    public static DeviceDriver open(String library, boolean copiesByKernel) throws NoDeviceException {
        LibCuda cuda;
        try {
            cuda = new FfmLibCuda(library);
        } catch (UnsatisfiedLinkError e) {
            throw new NoDeviceException(
                    "NVIDIA's driver cannot be loaded (" + e.getMessage()
                            + "): install it, or leave cuda out of the transports",
                    e);
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment count = arena.allocate(ValueLayout.JAVA_INT);
            require(cuda, "cuInit", cuda.cuInit(0));
            require(cuda, "cuDeviceGetCount", cuda.cuDeviceGetCount(count));
            return new DeviceDriver(cuda, count.get(ValueLayout.JAVA_INT, 0), copiesByKernel);
        } catch (DeviceFault e) {
            throw new NoDeviceException(
                    "NVIDIA's driver finds no device (" + e.getMessage()
                            + "): look at nvidia-smi, or leave cuda out of the transports",
                    e);
        }
    }

    public LibCuda cuda() {
        return cuda;
    }

    public DeviceContexts contexts() {
        return contexts;
    }

    CopyKernels kernels() {
        return kernels;
    }

    /** Compiles and tries what the device's copies use, so that no copy waits for it. Any thread. */
    public void prepareCopies(int ordinal) {
        kernels.of(ordinal);
    }

    /** How the devices that were prepared copy small runs, a line each; empty if kernels are not wanted. */
    public List<String> notes() {
        return kernels.notes();
    }

    /** Runs copied by kernels since this was opened. */
    public long runsCopiedByKernel() {
        return kernels.runsCopied();
    }

    public int deviceCount() {
        return deviceCount;
    }

    /** A device's attribute; 0 if this driver does not know it. */
    int attributeOf(int attribute, int ordinal) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment device = arena.allocate(ValueLayout.JAVA_INT);
            MemorySegment value = arena.allocate(ValueLayout.JAVA_INT);
            require("cuDeviceGet of device " + ordinal, cuda.cuDeviceGet(device, ordinal));
            int result = cuda.cuDeviceGetAttribute(value, attribute, device.get(ValueLayout.JAVA_INT, 0));
            return result == CudaApi.CUDA_SUCCESS ? value.get(ValueLayout.JAVA_INT, 0) : 0;
        }
    }

    /**
     * Does nothing for a successful result.
     *
     * @throws DeviceFault that names the call and its result
     */
    public void require(String call, int result) {
        require(cuda, call, result);
    }

    private static void require(LibCuda cuda, String call, int result) {
        if (result != CudaApi.CUDA_SUCCESS) {
            throw new DeviceFault(call, cuda.cuGetErrorName(result));
        }
    }

    /** Releases the contexts; their streams and memory are closed already. */
    @Override
    public void close() {
        kernels.close();
        contexts.close();
    }
}
