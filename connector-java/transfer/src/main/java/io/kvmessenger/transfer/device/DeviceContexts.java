package io.kvmessenger.transfer.device;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Supplier;

/**
 * The primary context of each device that is used, kept while this is open.
 *
 * <p>Safe from any thread. It leaves the current context of an engine's threads as it was: {@link #within} puts it back. A thread
 * of the messenger's own keeps the one that it used last.
 */
public final class DeviceContexts implements AutoCloseable {
    private final DeviceDriver driver;
    /** By the device's ordinal. */
    private final Map<Integer, Long> contexts = new HashMap<>();

    DeviceContexts(DeviceDriver driver) {
        this.driver = driver;
    }

    /**
     * The device's primary context, taken hold of at the first call.
     *
     * @throws DeviceFault where there is no such device, or it gives none
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

    /** Makes a context of {@link #of} the calling thread's, which belongs to the messenger. Allocates nothing. */
    void makeCurrent(long context) {
        int result = driver.cuda().cuCtxSetCurrent(context);
        if (result != 0) {
            driver.require("cuCtxSetCurrent", result);
        }
    }

    /** Calls the driver in the context of a device, on any thread; the thread's own context is current again afterwards. */
    public <T> T within(int ordinal, Supplier<T> calls) {
        driver.require("cuCtxPushCurrent", driver.cuda().cuCtxPushCurrent_v2(of(ordinal)));
        try {
            return calls.get();
        } finally {
            driver.cuda().cuCtxPopCurrent_v2(MemorySegment.NULL);
        }
    }

    /** The same, for calls without an answer. */
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
}
