package io.kvmessenger.transfer;

import io.kvmessenger.foreign.ForeignMemory;
import java.lang.foreign.MemorySegment;

/**
 * Memory that may be registered with an engine: its address, and how another process or a NIC can access it. A value.
 *
 * <p>It owns nothing: the owner of the memory must keep it for longer than its {@link Region}.
 */
public sealed interface Memory {
    /** Address of the first byte: in this process for host memory, in the unified address space for device memory. */
    long address();

    long lengthBytes();

    /** Host memory that no other process can map. */
    static Host host(MemorySegment bytes) {
        return new Host(bytes, Host.NOT_SHAREABLE);
    }

    static Host hostAt(long address, long lengthBytes, int memfd) {
        return new Host(ForeignMemory.at(address, lengthBytes), memfd);
    }

    /**
     * Host memory, mapped into this process.
     *
     * @param memfd the descriptor that {@code bytes} map from offset 0, or {@link #NOT_SHAREABLE}; one without the seal
     *     F_SEAL_SHRINK counts as not shareable
     */
    record Host(MemorySegment bytes, int memfd) implements Memory {
        /** No descriptor exists by which another process could map the memory. */
        public static final int NOT_SHAREABLE = -1;

        @Override
        public long address() {
            return bytes.address();
        }

        @Override
        public long lengthBytes() {
            return bytes.byteSize();
        }

        public boolean isShareable() {
            return memfd != NOT_SHAREABLE;
        }
    }

    /**
     * Memory of an accelerator, which the CPU may not access.
     *
     * @param ordinal index of the device in this process
     */
    record Device(int ordinal, long address, long lengthBytes, HandleKind handleKind) implements Memory {
        public Device {
            if (ordinal < 0 || address == 0 || lengthBytes <= 0) {
                throw new IllegalArgumentException("device memory of " + lengthBytes + " bytes at address " + address
                        + " of device " + ordinal + ", expected a length, an address and an ordinal from 0");
            }
        }

        @Override
        public String toString() {
            return "memory of device " + ordinal;
        }
    }

    /** The form in which a device allocation can be exported (CUmemAllocationHandleType). */
    enum HandleKind {
        /** Not exportable: it was not allocated by cuMemCreate, or without a handle type. */
        NONE,
        /** A file descriptor, for processes of this host. */
        POSIX_FD,
        /** A fabric handle, for hosts of one NVLink domain as well. */
        FABRIC
    }
}
