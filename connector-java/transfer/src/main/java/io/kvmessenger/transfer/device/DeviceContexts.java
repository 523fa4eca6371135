package io.kvmessenger.transfer.device;

import io.kvmessenger.foreign.CudaApi;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Supplier;

/**
 * The primary contexts of the devices in use, retained until this is closed.
 *
 * <p>Safe from any thread. {@link #within} restores the current context of an engine's threads. A thread of the
 * messenger keeps the context that it used last.
 *
 * <p>All calls are made in the relaxed capture mode. In the driver's default mode a call such as {@code cuEventQuery} on
 * any thread ends a graph capture that the engine has begun on its own thread in that mode (CUDA driver API, {@code
 * cuThreadExchangeStreamCaptureMode}).
 */
public final class DeviceContexts implements AutoCloseable {
    private final DeviceDriver driver;
    /** By the device's ordinal. */
    private final Map<Integer, Long> contexts = new HashMap<>();

    private final ThreadLocal<CaptureMode> captureMode = ThreadLocal.withInitial(CaptureMode::new);

    DeviceContexts(DeviceDriver driver) {
        this.driver = driver;
    }

    /**
     * The device's primary context, retained at the first call.
     *
     * @throws DeviceFault when there is no such device, or it provides none
     */
    public synchronized long of(int ordinal) {
        return contexts.computeIfAbsent(ordinal, this::retain);
    }

    private long retain(int ordinal) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment device = arena.allocate(ValueLayout.JAVA_INT);
            MemorySegment context = arena.allocate(ValueLayout.JAVA_LONG);
            driver.require("cuDeviceGet of device " + ordinal, driver.cuda().cuDeviceGet(device, ordinal));
            driver.require(
                    "cuDevicePrimaryCtxRetain",
                    driver.cuda().cuDevicePrimaryCtxRetain(context, device.get(ValueLayout.JAVA_INT, 0)));
            return context.get(ValueLayout.JAVA_LONG, 0);
        }
    }

    /**
     * Makes a context from {@link #of} current on the calling thread, one of the messenger's, which stays in the relaxed
     * capture mode. Allocates nothing after a thread's first call.
     */
    void makeCurrent(long context) {
        int result = tryMakeCurrent(context);
        if (result != CudaApi.CUDA_SUCCESS) {
            driver.require("cuCtxSetCurrent", result);
        }
    }

    /** The same, with the driver's code for a result, so that what is left can be closed in a context that has failed. */
    int tryMakeCurrent(long context) {
        CaptureMode mode = captureMode.get();
        if (!mode.staysRelaxed) {
            mode.exchange(CudaApi.CU_STREAM_CAPTURE_MODE_RELAXED);
            mode.staysRelaxed = true;
        }
        return driver.cuda().cuCtxSetCurrent(context);
    }

    /** Calls the driver in a device's context, on any thread; restores the thread's context and mode afterwards. */
    public <T> T within(int ordinal, Supplier<T> calls) {
        CaptureMode mode = captureMode.get();
        int own = mode.exchange(CudaApi.CU_STREAM_CAPTURE_MODE_RELAXED);
        try {
            driver.require("cuCtxPushCurrent", driver.cuda().cuCtxPushCurrent_v2(of(ordinal)));
            try {
                return calls.get();
            } finally {
                driver.cuda().cuCtxPopCurrent_v2(MemorySegment.NULL);
            }
        } finally {
            mode.exchange(own);
        }
    }

    /** The same for calls without a result. */
    public void within(int ordinal, Runnable calls) {
        within(ordinal, () -> {
            calls.run();
            return ordinal;
        });
    }

    @Override
    public synchronized void close() {
        for (int ordinal : contexts.keySet()) {
            driver.cuda().cuDevicePrimaryCtxRelease_v2(ordinal);
        }
        contexts.clear();
    }

    /** Reads and sets the driver's capture mode of one thread. */
    private final class CaptureMode {
        private final MemorySegment exchanged = Arena.ofAuto().allocate(ValueLayout.JAVA_INT);
        private boolean staysRelaxed;

        /** Sets the mode; returns the one before. */
        int exchange(int mode) {
            exchanged.set(ValueLayout.JAVA_INT, 0, mode);
            int result = driver.cuda().cuThreadExchangeStreamCaptureMode(exchanged);
            if (result != CudaApi.CUDA_SUCCESS) {
                driver.require("cuThreadExchangeStreamCaptureMode", result);
            }
            return exchanged.get(ValueLayout.JAVA_INT, 0);
        }
    }
}
