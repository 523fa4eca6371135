package io.kvmessenger.transfer;

/**
 * Byte ranges of a region, sorted by offset, pairwise disjoint; built once for a grant, read for every write.
 *
 * <p>Immutable; safe from any thread. Adjacent ranges are merged, so that a coalesced write over both is inside.
 */
public final class WindowRanges {
    private final long[] fromBytes;
    private final long[] toBytes;

    private WindowRanges(long[] fromBytes, long[] toBytes) {
        this.fromBytes = fromBytes;
        this.toBytes = toBytes;
    }

    /**
     * @param offsetsBytes range starts, any order; the array is not kept
     * @param lengthBytes the one length of all ranges
     * @throws IllegalArgumentException when two ranges overlap or a bound overflows
     */
    public static WindowRanges ofEqual(long[] offsetsBytes, long lengthBytes) {
        long[] sorted = offsetsBytes.clone();
        java.util.Arrays.sort(sorted);
        long[] from = new long[sorted.length];
        long[] to = new long[sorted.length];
        int count = 0;
        for (long offset : sorted) {
            long end = Math.addExact(offset, lengthBytes);
            if (offset < 0 || lengthBytes <= 0) {
                throw new IllegalArgumentException("range at " + offset + " of " + lengthBytes + " bytes");
            }
            if (count > 0 && offset < to[count - 1]) {
                throw new IllegalArgumentException("ranges overlap at offset " + offset);
            }
            if (count > 0 && offset == to[count - 1]) {
                to[count - 1] = end;
            } else {
                from[count] = offset;
                to[count++] = end;
            }
        }
        return new WindowRanges(java.util.Arrays.copyOf(from, count), java.util.Arrays.copyOf(to, count));
    }

    /** Whether the whole write lies inside one range. Allocates nothing. */
    public boolean contains(long offsetBytes, long lengthBytes) {
        int low = 0;
        int high = fromBytes.length - 1;
        while (low <= high) {
            int middle = (low + high) >>> 1;
            if (fromBytes[middle] > offsetBytes) {
                high = middle - 1;
            } else if (toBytes[middle] <= offsetBytes) {
                low = middle + 1;
            } else {
                return lengthBytes >= 0 && lengthBytes <= toBytes[middle] - offsetBytes;
            }
        }
        return false;
    }

    /** Where the last range ends; 0 when there is none. */
    public long endBytes() {
        return toBytes.length == 0 ? 0 : toBytes[toBytes.length - 1];
    }
}
