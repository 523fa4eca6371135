package io.kvmessenger.transfer.device;

import io.kvmessenger.transfer.Memory;
import java.lang.foreign.MemorySegment;

/**
 * What copies between the memories of this process: a driver, loaded when it is needed for the first time.
 *
 * <p>Safe from any thread; a stream belongs to the thread that opens it.
 */
public interface DeviceAccess extends AutoCloseable {
    /** There is no device. */
    DeviceAccess NONE = new DeviceAccess() {
        @Override
        public String refusal(int ordinal) {
            return "this engine copies to no device";
        }

        @Override
        public CopyStream openStream(int ordinal) {
            throw new DeviceFault("opening a stream", refusal(ordinal));
        }

        @Override
        public MemorySegment pin(long lengthBytes) {
            throw new DeviceFault("pinning host memory", "no device");
        }

        @Override
        public void close() {}
    };

    /** Why nothing can be copied to and from a device of this process, or null. */
    String refusal(int ordinal);

    /**
     * A new stream of a device.
     *
     * @throws DeviceFault where the driver refuses
     */
    CopyStream openStream(int ordinal);

    /**
     * Page-locked host memory, held until this is closed.
     *
     * @throws DeviceFault where the driver refuses
     */
    MemorySegment pin(long lengthBytes);

    /**
     * Memory of a device for other hardware.
     *
     * @return whose descriptor is the caller's
     * @throws DeviceFault where the driver refuses
     */
    default DmaBuf exportDmaBuf(Memory.Device memory) {
        throw new DeviceFault("exporting " + memory, "no driver that could");
    }

    /**
     * How what NICs write into a device becomes visible there.
     *
     * @throws DeviceFault where it cannot be made to
     */
    default NicWrites nicWrites(int ordinal) {
        throw new DeviceFault("ordering what a NIC writes into device " + ordinal, "no driver that could");
    }

    /** All streams are closed already. */
    @Override
    void close();
}
