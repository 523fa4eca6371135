package io.kvmessenger.transfer.device;

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
 */
public final class DeviceContexts implements AutoCloseable {
    private final DeviceDriver driver;
    /** By the device's ordinal. */
    private final Map<Integer, Long> contexts = new HashMap<>();

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

    /** Makes a context from {@link #of} current on the calling thread, one of the messenger's. Allocates nothing. */
    void makeCurrent(long context) {
        int result = driver.cuda().cuCtxSetCurrent(context);
        if (result != 0) {
            driver.require("cuCtxSetCurrent", result);
        }
    }

    /** Calls the driver in a device's context, on any thread; restores the thread's own context afterwards. */
    public <T> T within(int ordinal, Supplier<T> calls) {
        driver.require("cuCtxPushCurrent", driver.cuda().cuCtxPushCurrent_v2(of(ordinal)));
        try {
            return calls.get();
        } finally {
            driver.cuda().cuCtxPopCurrent_v2(MemorySegment.NULL);
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
}
