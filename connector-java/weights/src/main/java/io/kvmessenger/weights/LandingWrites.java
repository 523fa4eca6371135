package io.kvmessenger.weights;

import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;

/**
 * The writes of a whole landing: from its begin on, each of the same length but the last. Both sides compute their number
 * from their own region, and the host compares it with the announced one. Pure.
 */
final class LandingWrites {
    static final long WRITE_BYTES = 4 << 20;

    private LandingWrites() {}

    static long count(long regionLengthBytes) {
        return Math.ceilDiv(regionLengthBytes, WRITE_BYTES);
    }

    static long offsetBytes(long write) {
        return write * WRITE_BYTES;
    }

    static long lengthBytes(long write, long regionLengthBytes) {
        return Math.min(WRITE_BYTES, regionLengthBytes - offsetBytes(write));
    }

    /** All of the region. */
    static WindowArea area(RegionDescriptor region) {
        return WindowArea.of(region, WindowRanges.of(new long[] {0}, new long[] {region.lengthBytes()}));
    }
}
