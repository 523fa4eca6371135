package io.kvmessenger.transfer.samehost;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * What writer and target say about a region: the writer names one, the target answers with its length, and with its
 * descriptor beside the record. A value.
 *
 * @param lengthBytes {@link #NOT_SHAREABLE} when the region cannot be mapped or does not exist
 */
public record RegionRecord(int regionId, long lengthBytes) {
    public static final long NOT_SHAREABLE = -1;

    private static final int LENGTH_BYTES = 16;

    /** There is no such region for the peer. */
    public static RegionRecord unknown(int regionId) {
        return new RegionRecord(regionId, NOT_SHAREABLE);
    }

    public MemorySegment encode() {
        MemorySegment out = MemorySegment.ofArray(new long[LENGTH_BYTES / Long.BYTES]);
        out.set(ValueLayout.JAVA_LONG, 0, regionId);
        out.set(ValueLayout.JAVA_LONG, Long.BYTES, lengthBytes);
        return out;
    }

    /** What the record says, or null when it says nothing. Both ends are on one machine: its byte order. */
    public static RegionRecord parse(MemorySegment in) {
        return in.byteSize() != LENGTH_BYTES
                ? null
                : new RegionRecord(
                        (int) in.get(ValueLayout.JAVA_LONG_UNALIGNED, 0),
                        in.get(ValueLayout.JAVA_LONG_UNALIGNED, Long.BYTES));
    }
}
