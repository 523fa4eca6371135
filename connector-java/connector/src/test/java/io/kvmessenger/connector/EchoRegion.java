package io.kvmessenger.connector;

import static org.junit.jupiter.api.Assumptions.abort;

import io.kvmessenger.testkit.device.DeviceAllocation;
import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.device.DeviceCopyStream;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.NoDeviceException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Map;

/** Memory for an echo, of the host or of a device, whose content a test writes and reads. One thread. */
interface EchoRegion extends AutoCloseable {
    /** Its part of the request to open a messenger. */
    Map<String, Object> described();

    /** What a test reads and writes. */
    MemorySegment bytes();

    /** Copies {@link #bytes} to the memory, where they are not the same. */
    void publish();

    /** Copies the memory to {@link #bytes}, where they are not the same. */
    void refresh();

    @Override
    void close();

    static EchoRegion onHost(long lengthBytes) {
        return new OnHost(HostMemory.allocate("echo", lengthBytes));
    }

    /** By whatever driver the loader finds, in test runs a stand-in; skips the test where there is none. */
    static EchoRegion onDevice(long lengthBytes) {
        try {
            DeviceDriver driver = DeviceDriver.open(DeviceDriver.LIBRARY);
            int handleCount = (int) Math.ceilDiv(lengthBytes, DeviceAllocation.GRANULE_BYTES);
            return new OnDevice(
                    driver,
                    DeviceAllocation.ofHandles(driver, OnDevice.ORDINAL, handleCount, DeviceAllocation.GRANULE_BYTES),
                    Arena.ofAuto().allocate(lengthBytes, 4096));
        } catch (NoDeviceException e) {
            return abort(e.getMessage()
                    + ": examples/setup/find-cuda-stand-in names a folder for -Dkvmessenger.cuda-stand-in");
        }
    }

    /** Host memory that peers may map: the test has the memory itself. */
    record OnHost(HostMemory memory) implements EchoRegion {
        @Override
        public Map<String, Object> described() {
            return Map.of("address", bytes().address(), "lengthBytes", bytes().byteSize(), "memfd", memory.memfd());
        }

        @Override
        public MemorySegment bytes() {
            return memory.memory();
        }

        @Override
        public void publish() {}

        @Override
        public void refresh() {}

        @Override
        public void close() {
            memory.close();
        }
    }

    /** Memory of a device: the test has a copy. */
    record OnDevice(DeviceDriver driver, DeviceAllocation allocation, MemorySegment bytes) implements EchoRegion {
        static final int ORDINAL = 0;

        @Override
        public Map<String, Object> described() {
            return Map.of("device", ORDINAL, "address", allocation.address(), "lengthBytes", bytes.byteSize());
        }

        @Override
        public void publish() {
            try (DeviceCopyStream stream = DeviceCopyStream.open(driver, ORDINAL)) {
                stream.fromHost(allocation.address(), bytes.address(), bytes.byteSize());
                stream.mark();
            }
        }

        @Override
        public void refresh() {
            try (DeviceCopyStream stream = DeviceCopyStream.open(driver, ORDINAL)) {
                stream.toHost(bytes.address(), allocation.address(), bytes.byteSize());
                stream.mark();
            }
        }

        @Override
        public void close() {
            allocation.close();
            driver.close();
        }
    }
}
