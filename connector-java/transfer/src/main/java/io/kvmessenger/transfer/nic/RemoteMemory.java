package io.kvmessenger.transfer.nic;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;
import static io.kvmessenger.transfer.spi.LittleEndian.LONG;

import java.lang.foreign.MemorySegment;

/**
 * A target's data on a region: how a writer's NIC names its memory. A value.
 *
 * @param lengthBytes {@link #UNKNOWN} if the region does not exist
 * @param base remote address of its first byte
 * @param key the remote key that permits writes
 */
public record RemoteMemory(int regionId, long lengthBytes, long base, long key) {
    public static final long UNKNOWN = -1;
    /** In place of an address: the region is written by frames, into the peer's slabs. */
    private static final long BY_FRAMES = Long.MIN_VALUE;

    public static final int LENGTH_BYTES = 32;

    public static RemoteMemory unknown(int regionId) {
        return new RemoteMemory(regionId, UNKNOWN, 0, 0);
    }

    /** A region that no NIC reaches, and that frames are written for. */
    public static RemoteMemory byFrames(int regionId, long lengthBytes) {
        return new RemoteMemory(regionId, lengthBytes, BY_FRAMES, 0);
    }

    public boolean isByFrames() {
        return base == BY_FRAMES;
    }

    public MemorySegment encode() {
        return encode(0);
    }

    /** The record, with room for {@code moreBytes} after it. */
    public MemorySegment encode(int moreBytes) {
        MemorySegment out = MemorySegment.ofArray(new byte[LENGTH_BYTES + moreBytes]);
        out.set(INT, 0, regionId);
        out.set(LONG, 8, lengthBytes);
        out.set(LONG, 16, base);
        out.set(LONG, 24, key);
        return out;
    }

    /** Decodes the beginning of a record; null when it is too short. */
    public static RemoteMemory parse(MemorySegment in) {
        return in.byteSize() < LENGTH_BYTES
                ? null
                : new RemoteMemory(in.get(INT, 0), in.get(LONG, 8), in.get(LONG, 16), in.get(LONG, 24));
    }
}
