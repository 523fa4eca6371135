package io.kvmessenger.testkit.device;

import io.kvmessenger.testkit.transfer.EngineMemory;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.cuda.CudaTransport;
import io.kvmessenger.transfer.device.DeviceDriver;
import java.lang.foreign.MemorySegment;

/**
 * Memory of the stand-in's devices for engines that a contract suite drives. Tests see its bytes without asking a stream, so that an
 * immediate told before them is caught: to copy them to the host would take as long as they are late.
 */
public final class StandInMemories implements EngineMemory.OfDevices {
    private static int engineCount;

    @Override
    public TransferOptions prepare(TransferOptions options) {
        return options.with(CudaTransport.LIBRARY, StandInCuda.library());
    }

    /** Of two devices in turn, and of two handles each, so that pages lie on both sides of a border. */
    @Override
    public synchronized EngineMemory allocate(long lengthBytes) {
        StandInCuda standIn = StandInCuda.load();
        standIn.delay(SlowCopies.DELAY_NS);
        DeviceDriver driver = StandInCuda.driver();
        long offsetBytes = DeviceAllocation.GRANULE_BYTES - 4096;
        long handleBytes = DeviceAllocation.GRANULE_BYTES;
        int handleCount = (int) Math.ceilDiv(offsetBytes + lengthBytes, handleBytes);
        DeviceAllocation allocation = DeviceAllocation.ofHandles(driver, engineCount++ % 2, handleCount, handleBytes);
        return new EngineMemory() {
            @Override
            public Memory memory() {
                return allocation.memory(offsetBytes, lengthBytes);
            }

            @Override
            public MemorySegment bytes() {
                return standIn.bytes(allocation.address() + offsetBytes, lengthBytes);
            }

            @Override
            public void close() {
                allocation.close();
                driver.close();
            }
        };
    }
}
