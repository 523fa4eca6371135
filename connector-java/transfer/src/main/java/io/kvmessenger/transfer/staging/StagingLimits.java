package io.kvmessenger.transfer.staging;

/**
 * How much page-locked host memory each worker of an engine takes, once it stages, for each direction. A value.
 *
 * @param slabBytes of which one post to a path is made
 * @param slabCount of those, so many at once
 * @param longSlabCount beside them, in one piece, for pages that are longer than a slab
 */
public record StagingLimits(long slabBytes, int slabCount, int longSlabCount) {
    /**
     * A slab is as long as what tcp sends at once. 24 of them cover what 25 Gbit/s have under way in the 2 ms after which a target
     * says at the latest what it took, and the copies before and behind; 8 MiB hold a page of 61 joined layers of MLA.
     */
    public static final StagingLimits STANDARD = new StagingLimits(1 << 20, 24, 8);

    public StagingLimits {
        if (slabBytes < 1 || slabCount < 1 || longSlabCount < 1) {
            throw new IllegalArgumentException("staging with " + slabCount + " and " + longSlabCount + " slabs of "
                    + slabBytes + " bytes, expected at least 1 of each");
        }
    }

    /** How long one page may be. */
    public long pageMaxBytes() {
        return longSlabCount * slabBytes;
    }

    int allSlabs() {
        return slabCount + longSlabCount;
    }
}
