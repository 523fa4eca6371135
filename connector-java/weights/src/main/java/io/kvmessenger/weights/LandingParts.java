package io.kvmessenger.weights;

import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;

/**
 * How a whole landing is divided: into writes, from its begin on, each of the same length but the last, and into the
 * pieces of its digest. Both sides compute the number of writes from their own region, and the host compares it with the
 * announced one. A parameter, so that a simulation has many parts in little memory. Pure.
 */
public record LandingParts(long writeBytes, long pieceBytes) {
    public static final LandingParts PRODUCTION = new LandingParts(4 << 20, 1 << 20);

    long writeCount(long regionLengthBytes) {
        return Math.ceilDiv(regionLengthBytes, writeBytes);
    }

    long offsetBytes(long write) {
        return write * writeBytes;
    }

    long lengthBytes(long write, long regionLengthBytes) {
        return Math.min(writeBytes, regionLengthBytes - offsetBytes(write));
    }

    /** All of the region. */
    static WindowArea area(RegionDescriptor region) {
        return WindowArea.of(region, WindowRanges.of(new long[] {0}, new long[] {region.lengthBytes()}));
    }
}
