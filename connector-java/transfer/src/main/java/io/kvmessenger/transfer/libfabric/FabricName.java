package io.kvmessenger.transfer.libfabric;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The address of an endpoint, and what decides which others can reach it. A value.
 *
 * @param protocol wire protocol of its provider
 * @param addressFormat format of the address
 * @param address in the provider's format
 */
record FabricName(int protocol, int addressFormat, byte[] address) {
    static final int ADDRESS_MAX_BYTES = 256;

    private static final int PREFIX_BYTES = 8;

    int lengthBytes() {
        return PREFIX_BYTES + address.length;
    }

    void encode(MemorySegment out) {
        out.set(INT, 0, protocol);
        out.set(INT, 4, addressFormat);
        MemorySegment.copy(address, 0, out, ValueLayout.JAVA_BYTE, PREFIX_BYTES, address.length);
    }

    MemorySegment encode() {
        MemorySegment out = MemorySegment.ofArray(new byte[lengthBytes()]);
        encode(out);
        return out;
    }

    /** Decodes a name; null when malformed. */
    static FabricName parse(MemorySegment in) {
        long length = in.byteSize() - PREFIX_BYTES;
        return length < 1 || length > ADDRESS_MAX_BYTES
                ? null
                : new FabricName(
                        in.get(INT, 0),
                        in.get(INT, 4),
                        in.asSlice(PREFIX_BYTES, length).toArray(ValueLayout.JAVA_BYTE));
    }

    /** Whether endpoints of this name and the other can reach each other at all. */
    boolean isOfKind(FabricName other) {
        return protocol == other.protocol && addressFormat == other.addressFormat;
    }
}
