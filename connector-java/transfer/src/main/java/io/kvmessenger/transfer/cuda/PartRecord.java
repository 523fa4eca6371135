package io.kvmessenger.transfer.cuda;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/** One part of a region in device memory; its descriptor travels with the record. A value. */
record PartRecord(int regionId, long lengthBytes) {
    private static final int LENGTH_BYTES = 16;

    MemorySegment encode() {
        return MemorySegment.ofArray(new long[] {regionId, lengthBytes});
    }

    /** Decodes a record; null when malformed. */
    static PartRecord parse(MemorySegment in) {
        return in.byteSize() != LENGTH_BYTES
                ? null
                : new PartRecord(
                        (int) in.get(ValueLayout.JAVA_LONG_UNALIGNED, 0),
                        in.get(ValueLayout.JAVA_LONG_UNALIGNED, Long.BYTES));
    }
}
