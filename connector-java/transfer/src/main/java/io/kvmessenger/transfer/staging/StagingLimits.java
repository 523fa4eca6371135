package io.kvmessenger.transfer.staging;

/**
 * The page-locked host memory of each worker that stages, for each direction. A value.
 *
 * @param slabBytes length of a slab, which limits one post to a path
 * @param slabCount number of single slabs
 * @param longSlabCount number of slabs in one contiguous piece besides, for pages longer than a slab
 * @param grants the memory that peers write to by themselves
 */
public record StagingLimits(long slabBytes, int slabCount, int longSlabCount, GrantLimits grants) {
    /**
     * A slab is as long as one send of tcp. 24 of them cover the bytes in flight at 25 Gbit/s within the 2 ms after
     * which a target reports what it took, and the copies before and after; 8 MiB hold a page of 61 joined layers of
     * MLA.
     */
    public static final StagingLimits STANDARD = new StagingLimits(1 << 20, 24, 8);

    public StagingLimits {
        if (slabBytes < 1 || slabCount < 1 || longSlabCount < 1) {
            throw new IllegalArgumentException("staging with " + slabCount + " and " + longSlabCount + " slabs of "
                    + slabBytes + " bytes, expected at least 1 of each");
        }
    }

    /** No memory that peers write to by themselves. */
    public StagingLimits(long slabBytes, int slabCount, int longSlabCount) {
        this(slabBytes, slabCount, longSlabCount, GrantLimits.NONE);
    }

    /** The same with such memory. */
    public StagingLimits granting(GrantLimits granted) {
        return new StagingLimits(slabBytes, slabCount, longSlabCount, granted);
    }

    /** Longest page that can be staged. */
    public long pageMaxBytes() {
        return longSlabCount * slabBytes;
    }

    int allSlabs() {
        return slabCount + longSlabCount;
    }
}
