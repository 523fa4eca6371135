package io.kvmessenger.testkit.transfer;

import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferOptions;
import java.lang.foreign.MemorySegment;
import java.util.ServiceLoader;

/** Memory that a driven engine registers, with access to its bytes for the test. */
public interface EngineMemory extends AutoCloseable {
    /** The memory to register. */
    Memory memory();

    /** The present content; writing to it takes effect at once. */
    MemorySegment bytes();

    @Override
    void close();

    /** Provides device memory, if available; found by the {@link ServiceLoader}, since this module calls no driver. */
    interface OfDevices {
        /** The options of an engine that uses them. */
        TransferOptions prepare(TransferOptions options);

        EngineMemory allocate(long lengthBytes);

        /** Null if the engine's first transport is for host memory. */
        static OfDevices wantedBy(TransferOptions options) {
            return options.get(TransferOptions.TRANSPORTS).getFirst().equals(TransferOptions.CUDA)
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
