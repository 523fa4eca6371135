package io.kvmessenger.transfer.device;

import io.kvmessenger.transfer.Memory;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/** NVIDIA's driver, loaded on first use. Safe from any thread. */
public final class DriverAccess implements DeviceAccess {
    private final String library;
    private final List<PinnedMemory> pinned = new ArrayList<>();
    private DeviceDriver driver;

    /** @param library the driver's path, or a name for the loader */
    public DriverAccess(String library) {
        this.library = library;
    }

    @Override
    public synchronized String refusal(int ordinal) {
        try {
            if (driver == null) {
                driver = DeviceDriver.open(library);
            }
        } catch (NoDeviceException e) {
            return e.getMessage();
        }
        return ordinal < driver.deviceCount()
                ? null
                : "there is no device " + ordinal + ": the driver shows this process " + driver.deviceCount();
    }

    @Override
    public CopyStream openStream(int ordinal) {
        return DeviceCopyStream.open(opened(), ordinal);
    }

    private synchronized DeviceDriver opened() {
        if (driver == null) {
            throw new DeviceFault("opening the driver", "no region of a device being registered");
        }
        return driver;
    }

    /** Uses the context of the first device; any device can copy to and from the memory. */
    @Override
    public synchronized MemorySegment pin(long lengthBytes) {
        PinnedMemory memory = PinnedMemory.allocate(opened(), 0, lengthBytes);
        pinned.add(memory);
        return memory.memory();
    }

    @Override
    public DmaBuf exportDmaBuf(Memory.Device memory) {
        return DmaBuf.of(opened(), memory);
    }

    @Override
    public NicWrites nicWrites(int ordinal) {
        return NicWrites.of(opened(), ordinal);
    }

    @Override
    public synchronized void close() {
        pinned.forEach(PinnedMemory::close);
        pinned.clear();
        if (driver != null) {
            driver.close();
            driver = null;
        }
    }
}
