package io.kvmessenger.transfer.libfabric;

import static io.kvmessenger.transfer.spi.LittleEndian.LONG;

import java.lang.foreign.MemorySegment;

/**
 * What a writer asks for: its endpoint, and whether it can write frames into slabs. A value.
 *
 * <p>The mark stands behind the endpoint's address, where releases without frames ignore it: their providers read as
 * many bytes as an address of theirs has.
 */
record FabricWish(FabricName name, boolean writesFrames) {
    /** "KVFRAMES" in wire order; no address of a provider ends with it. */
    private static final long FRAMES_MARK = 0x5345_4D41_5246_564BL;

    MemorySegment encode() {
        int nameBytes = name.lengthBytes();
        MemorySegment out = MemorySegment.ofArray(new byte[nameBytes + (writesFrames ? Long.BYTES : 0)]);
        name.encode(out);
        if (writesFrames) {
            out.set(LONG, nameBytes, FRAMES_MARK);
        }
        return out;
    }

    /** Decodes a wish; null when malformed. */
    static FabricWish parse(MemorySegment in) {
        long markAt = in.byteSize() - Long.BYTES;
        boolean writesFrames = markAt >= 0 && in.get(LONG, markAt) == FRAMES_MARK;
        FabricName name = FabricName.parse(writesFrames ? in.asSlice(0, markAt) : in);
        return name == null ? null : new FabricWish(name, writesFrames);
    }
}
