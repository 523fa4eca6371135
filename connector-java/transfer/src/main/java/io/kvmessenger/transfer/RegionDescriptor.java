package io.kvmessenger.transfer;

/**
 * What a peer needs to write to a region, and to check a write before it is posted. A value; sent to peers.
 *
 * @param regionId identifies the region within its engine
 * @param lengthBytes length of the region; offsets are in [0, length)
 * @param version of this descriptor's format
 * @param shareable whether a same-host peer of the same user may map it
 */
public record RegionDescriptor(int regionId, long lengthBytes, int version, boolean shareable) {
    public static final int VERSION = 1;

    /** Whether the range lies inside the region, without overflow. */
    public boolean contains(long offsetBytes, long rangeLengthBytes) {
        return offsetBytes >= 0 && rangeLengthBytes >= 0 && offsetBytes <= lengthBytes - rangeLengthBytes;
    }
}
