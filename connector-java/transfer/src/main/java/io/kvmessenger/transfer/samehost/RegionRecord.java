package io.kvmessenger.transfer.samehost;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * A record about a region: the writer names one, the target answers with its length, and with its descriptor alongside.
 * A value.
 *
 * @param lengthBytes {@link #NOT_SHAREABLE} when the region cannot be mapped or does not exist
 */
public record RegionRecord(int regionId, long lengthBytes) {
    public static final long NOT_SHAREABLE = -1;

    private static final int LENGTH_BYTES = 16;

    /** The answer for a region that the peer cannot map. */
    public static RegionRecord unknown(int regionId) {
        return new RegionRecord(regionId, NOT_SHAREABLE);
    }

    public MemorySegment encode() {
        MemorySegment out = MemorySegment.ofArray(new long[LENGTH_BYTES / Long.BYTES]);
        out.set(ValueLayout.JAVA_LONG, 0, regionId);
        out.set(ValueLayout.JAVA_LONG, Long.BYTES, lengthBytes);
        return out;
    }

    /** Decodes a record; null when malformed. Native byte order, as both ends are on one machine. */
    public static RegionRecord parse(MemorySegment in) {
        return in.byteSize() != LENGTH_BYTES
                ? null
                : new RegionRecord(
                        (int) in.get(ValueLayout.JAVA_LONG_UNALIGNED, 0),
                        in.get(ValueLayout.JAVA_LONG_UNALIGNED, Long.BYTES));
    }
}
