package io.kvmessenger.transfer.spi;

import static java.lang.foreign.ValueLayout.JAVA_INT_UNALIGNED;
import static java.lang.foreign.ValueLayout.JAVA_LONG_UNALIGNED;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;

/**
 * What a target says of a region: how a writer names its memory to the NIC. A value.
 *
 * @param lengthBytes {@link #UNKNOWN} where there is no such region
 * @param base what the address of its first byte is called
 * @param key what the NIC lets writes through by
 */
public record RemoteMemory(int regionId, long lengthBytes, long base, long key) {
    public static final long UNKNOWN = -1;
    public static final int LENGTH_BYTES = 32;

    private static final ValueLayout.OfInt INT = JAVA_INT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final ValueLayout.OfLong LONG = JAVA_LONG_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);

    public static RemoteMemory unknown(int regionId) {
        return new RemoteMemory(regionId, UNKNOWN, 0, 0);
    }

    public MemorySegment encode() {
        return encode(0);
    }

    /** The record, with room for so many bytes behind it. */
    public MemorySegment encode(int moreBytes) {
        MemorySegment out = MemorySegment.ofArray(new byte[LENGTH_BYTES + moreBytes]);
        out.set(INT, 0, regionId);
        out.set(LONG, 8, lengthBytes);
        out.set(LONG, 16, base);
        out.set(LONG, 24, key);
        return out;
    }

    /** What the record begins with, or null when it is too short. */
    public static RemoteMemory parse(MemorySegment in) {
        return in.byteSize() < LENGTH_BYTES
                ? null
                : new RemoteMemory(in.get(INT, 0), in.get(LONG, 8), in.get(LONG, 16), in.get(LONG, 24));
    }
}
