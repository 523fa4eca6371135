package io.kvmessenger.transfer.device;

import io.kvmessenger.transfer.Memory;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/** NVIDIA's driver, loaded on first use. Safe from any thread. */
public final class DriverAccess implements DeviceAccess {
    private final String library;
    private final boolean copiesByKernel;
    private final List<PinnedMemory> pinned = new ArrayList<>();
    private DeviceDriver driver;
    /** A device whose context this engine has or will have; any other's would be made for nothing. */
    private int ordinalInUse;

    /**
     * Copies by the copy engine alone.
     *
     * @param library the driver's path, or a name for the loader
     */
    public DriverAccess(String library) {
        this(library, false);
    }

    /**
     * @param library the driver's path, or a name for the loader
     * @param copiesByKernel whether many small runs are copied by a kernel where a device takes it
     */
    public DriverAccess(String library, boolean copiesByKernel) {
        this.library = library;
        this.copiesByKernel = copiesByKernel;
    }

    @Override
    public synchronized String refusal(int ordinal) {
        try {
            if (driver == null) {
                driver = DeviceDriver.open(library, copiesByKernel);
            }
        } catch (NoDeviceException e) {
            return e.getMessage();
        }
        if (ordinal < driver.deviceCount()) {
            ordinalInUse = ordinal;
            driver.prepareCopies(ordinal);
            return null;
        }
        return "there is no device " + ordinal + ": the driver shows this process " + driver.deviceCount();
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

    /**
     * Any device can copy to and from the memory. It is allocated in the context of a device that is in use: a context of
     * another one took 524 MiB of an H100 ({@code make gpu-check}).
     */
    @Override
    public synchronized MemorySegment pin(long lengthBytes) {
        PinnedMemory memory = PinnedMemory.allocate(opened(), ordinalInUse, lengthBytes);
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
    public synchronized List<String> notes() {
        return driver == null ? List.of() : driver.notes();
    }

    @Override
    public synchronized long runsCopiedByKernel() {
        return driver == null ? 0 : driver.runsCopiedByKernel();
    }

    @Override
    public synchronized void close() {
        pinned.forEach(PinnedMemory::giveUp);
        pinned.clear();
        if (driver != null) {
            driver.close();
            driver = null;
        }
    }
}
