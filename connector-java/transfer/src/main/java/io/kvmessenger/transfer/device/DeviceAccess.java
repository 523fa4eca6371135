package io.kvmessenger.transfer.device;

import io.kvmessenger.transfer.Memory;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * Copies between the memories of this process: a driver, loaded on first use.
 *
 * <p>Safe from any thread; a stream belongs to the thread that opens it.
 */
public interface DeviceAccess extends AutoCloseable {
    /** Refuses every device: used by a process without devices. */
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

    /** Why a device of this process cannot be copied to and from, or null: then what its copies use is prepared. */
    String refusal(int ordinal);

    /**
     * A new stream of a device.
     *
     * @throws DeviceFault when the driver refuses
     */
    CopyStream openStream(int ordinal);

    /**
     * Page-locked host memory, which lasts until this is closed.
     *
     * @throws DeviceFault when the driver refuses
     */
    MemorySegment pin(long lengthBytes);

    /**
     * Exports device memory for other hardware.
     *
     * @return the export, whose descriptor is the caller's
     * @throws DeviceFault when the driver refuses
     */
    default DmaBuf exportDmaBuf(Memory.Device memory) {
        throw new DeviceFault("exporting " + memory, "no driver that could");
    }

    /**
     * Makes what NICs write into a device visible to its kernels.
     *
     * @throws DeviceFault when that is impossible
     */
    default NicWrites nicWrites(int ordinal) {
        throw new DeviceFault("ordering what a NIC writes into device " + ordinal, "no driver that could");
    }

    /** How devices copy, a line each; empty if there is nothing to say. */
    default List<String> notes() {
        return List.of();
    }

    /** Runs of bytes that kernels have copied, of those that streams were given. */
    default long runsCopiedByKernel() {
        return 0;
    }

    /** Releases the driver; all streams are closed already. */
    @Override
    void close();
}
