package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferOptions;
import java.lang.foreign.MemorySegment;
import java.util.ServiceLoader;

/** What a driven engine registers, and how a test sees its bytes. */
public interface EngineMemory extends AutoCloseable {
    /** What to register. */
    Memory memory();

    /** What lies there at this moment; written to, it changes at once. */
    MemorySegment bytes();

    @Override
    void close();

    /** Finds memory of devices, where one can be had: by the {@link ServiceLoader}, since this module calls no driver. */
    interface OfDevices {
        /** The options of an engine that uses them. */
        TransferOptions prepare(TransferOptions options);

        EngineMemory allocate(long lengthBytes);

        /** Null where the engine's first transport is for host memory. */
        static OfDevices wantedBy(TransferOptions options) {
            return options.transports().getFirst().equals(TransferOptions.CUDA)
                    ? ServiceLoader.load(OfDevices.class)
                            .findFirst()
                            .orElseThrow(() -> new IllegalStateException("no test has memory of devices"))
                    : null;
        }
    }

    /** Host memory that peers can map. */
    static EngineMemory host(String name, long lengthBytes) {
        HostMemory memory = HostMemory.allocate(name, lengthBytes);
        return new EngineMemory() {
            @Override
            public Memory memory() {
                return memory.shared();
            }

            @Override
            public MemorySegment bytes() {
                return memory.memory();
            }

            @Override
            public void close() {
                memory.close();
            }
        };
    }
}
