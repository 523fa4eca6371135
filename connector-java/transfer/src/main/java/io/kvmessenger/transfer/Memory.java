package io.kvmessenger.transfer;

import io.kvmessenger.foreign.ForeignMemory;
import java.lang.foreign.MemorySegment;

/**
 * Memory that may be registered with an engine: where it is, and how another process or a NIC gets at it. A value.
 *
 * <p>It owns nothing: whatever allocated the memory keeps it for longer than its {@link Region}.
 */
public sealed interface Memory {
    /** Of its first byte: in this process for a host's, in the unified address space for a device's. */
    long address();

    /** How many bytes there are. */
    long lengthBytes();

    /** Host memory that no other process can map. */
    static Host host(MemorySegment bytes) {
        return new Host(bytes, Host.NOT_SHAREABLE);
    }

    /** Host memory at an address of this process. */
    static Host hostAt(long address, long lengthBytes, int memfd) {
        return new Host(ForeignMemory.at(address, lengthBytes), memfd);
    }

    /**
     * A mapping of this process.
     *
     * @param memfd the descriptor that {@code bytes} map from offset 0, or {@link #NOT_SHAREABLE}; one without the seal
     *     F_SEAL_SHRINK counts as not shareable
     */
    record Host(MemorySegment bytes, int memfd) implements Memory {
        /** There is no descriptor by which another process could map it. */
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
     * Memory of an accelerator. The processor may not read it.
     *
     * @param ordinal of the device, as this process counts them
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

    /** What the allocation of a device's memory can be exported as (CUmemAllocationHandleType). */
    enum HandleKind {
        /** Nothing: it was not allocated by cuMemCreate, or without a handle type. */
        NONE,
        /** A file descriptor, for processes of this host. */
        POSIX_FD,
        /** A fabric handle, for hosts of one NVLink domain as well. */
        FABRIC
    }
}
