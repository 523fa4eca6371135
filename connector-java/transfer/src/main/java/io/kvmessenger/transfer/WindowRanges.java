package io.kvmessenger.transfer;

import java.util.Arrays;
import java.util.BitSet;
import java.util.Comparator;
import java.util.List;

/**
 * Byte ranges of a region, sorted by offset, pairwise disjoint; built once per grant, read for every write.
 *
 * <p>Immutable; safe from any thread. Adjacent ranges are merged, so that a coalesced write over both is inside.
 */
public final class WindowRanges {
    private final long[] fromBytes;
    private final long[] toBytes;
    /** Replaces the ranges if the layers' pages form a grid; null otherwise. */
    private final PageGrid grid;
    /** Replaces the ranges in a union; null otherwise. */
    private final WindowRanges[] parts;

    private WindowRanges(long[] fromBytes, long[] toBytes, PageGrid grid, WindowRanges[] parts) {
        this.fromBytes = fromBytes;
        this.toBytes = toBytes;
        this.grid = grid;
        this.parts = parts;
    }

    private WindowRanges(long[] fromBytes, long[] toBytes, PageGrid grid) {
        this(fromBytes, toBytes, grid, null);
    }

    /** The union of several that share no byte; a write must lie inside one range of one of them. */
    public static WindowRanges union(List<WindowRanges> parts) {
        return parts.size() == 1
                ? parts.getFirst()
                : new WindowRanges(new long[0], new long[0], null, parts.toArray(WindowRanges[]::new));
    }

    /**
     * The same pages of several layers: page {@code p} of layer {@code l} is {@code layerPageBytes[l]} bytes at
     * {@code layerOffsets[l] + p * layerStrides[l]}. O(pages + layers) where layers lie one after the other or side by
     * side in each page, as in the engines' layouts.
     *
     * @param pageIndices any order; the array is not kept
     * @throws IllegalArgumentException when a page is named twice, ranges overlap or a bound overflows
     */
    public static WindowRanges ofPages(
            int[] pageIndices, long[] layerOffsets, long[] layerStrides, long[] layerPageBytes) {
        BitSet pages = new BitSet();
        for (int page : pageIndices) {
            if (page < 0 || pages.get(page)) {
                throw new IllegalArgumentException("page " + page + (page < 0 ? " is below 0" : " is named twice"));
            }
            pages.set(page);
        }
        if (pages.isEmpty() || layerOffsets.length == 0) {
            return new WindowRanges(new long[0], new long[0], null);
        }
        for (int i = 0; i < layerOffsets.length; i++) {
            if (layerOffsets[i] < 0
                    || layerPageBytes[i] <= 0
                    || layerStrides[i] < layerPageBytes[i]
                    || layerStrides[i] > (Long.MAX_VALUE - layerOffsets[i]) / pages.length()) {
                throw new IllegalArgumentException("layer at " + layerOffsets[i] + " with pages of " + layerPageBytes[i]
                        + " bytes, " + layerStrides[i] + " apart");
            }
        }
        return PageGrid.of(pages, layerOffsets, layerStrides, layerPageBytes)
                .map(grid -> new WindowRanges(new long[0], new long[0], grid))
                .orElseGet(() -> ofPagesOneByOne(pages, layerOffsets, layerStrides, layerPageBytes));
    }

    private static WindowRanges ofPagesOneByOne(
            BitSet pages, long[] layerOffsets, long[] layerStrides, long[] layerPageBytes) {
        int pageCount = pages.cardinality();
        long[] offsets = new long[pageCount * layerOffsets.length];
        long[] lengths = new long[offsets.length];
        int at = 0;
        for (int layer = 0; layer < layerOffsets.length; layer++) {
            for (int page = pages.nextSetBit(0); page >= 0; page = pages.nextSetBit(page + 1)) {
                offsets[at] = layerOffsets[layer] + page * layerStrides[layer];
                lengths[at++] = layerPageBytes[layer];
            }
        }
        return of(offsets, lengths);
    }

    /**
     * Ranges of one length.
     *
     * @param offsetsBytes range starts, any order; the array is not kept
     * @throws IllegalArgumentException when two ranges overlap or a bound overflows
     */
    public static WindowRanges ofEqual(long[] offsetsBytes, long lengthBytes) {
        long[] lengthsBytes = new long[offsetsBytes.length];
        Arrays.fill(lengthsBytes, lengthBytes);
        return of(offsetsBytes, lengthsBytes);
    }

    /**
     * Ranges of any lengths.
     *
     * @param offsetsBytes range starts, any order; the array is not kept
     * @param lengthsBytes of the range with the same index; at least 1
     * @throws IllegalArgumentException when two ranges overlap or a bound overflows
     */
    public static WindowRanges of(long[] offsetsBytes, long[] lengthsBytes) {
        int[] order = order(offsetsBytes);
        long[] from = new long[order.length];
        long[] to = new long[order.length];
        int count = 0;
        for (int i : order) {
            if (offsetsBytes[i] < 0 || lengthsBytes[i] <= 0 || offsetsBytes[i] > Long.MAX_VALUE - lengthsBytes[i]) {
                throw new IllegalArgumentException("range at " + offsetsBytes[i] + " of " + lengthsBytes[i] + " bytes");
            }
            if (count > 0 && offsetsBytes[i] < to[count - 1]) {
                throw new IllegalArgumentException("ranges overlap at offset " + offsetsBytes[i]);
            }
            if (count == 0 || offsetsBytes[i] > to[count - 1]) {
                from[count++] = offsetsBytes[i];
            }
            to[count - 1] = offsetsBytes[i] + lengthsBytes[i];
        }
        return new WindowRanges(Arrays.copyOf(from, count), Arrays.copyOf(to, count), null);
    }

    /** Indices sorted by offset. Sorting boxes them, so callers with many ranges should pass them sorted. */
    static int[] order(long[] offsetsBytes) {
        int[] order = new int[offsetsBytes.length];
        boolean ascending = true;
        for (int i = 0; i < order.length; i++) {
            order[i] = i;
            ascending &= i == 0 || offsetsBytes[i - 1] <= offsetsBytes[i];
        }
        return ascending
                ? order
                : Arrays.stream(order)
                        .boxed()
                        .sorted(Comparator.comparingLong(i -> offsetsBytes[i]))
                        .mapToInt(i -> i)
                        .toArray();
    }

    /** Whether the whole write lies inside one range. Allocates nothing. */
    public boolean contains(long offsetBytes, long lengthBytes) {
        if (parts != null) {
            return partsContain(offsetBytes, lengthBytes);
        }
        if (grid != null) {
            return grid.contains(offsetBytes, lengthBytes);
        }
        int range = lastNotAbove(fromBytes, offsetBytes);
        return range >= 0
                && offsetBytes < toBytes[range]
                && lengthBytes >= 0
                && lengthBytes <= toBytes[range] - offsetBytes;
    }

    private boolean partsContain(long offsetBytes, long lengthBytes) {
        for (WindowRanges part : parts) {
            if (part.contains(offsetBytes, lengthBytes)) {
                return true;
            }
        }
        return false;
    }

    /** Index of the last value not above {@code value}; -1 when all are above. */
    static int lastNotAbove(long[] ascending, long value) {
        int low = 0;
        int high = ascending.length - 1;
        while (low <= high) {
            int middle = (low + high) >>> 1;
            if (ascending[middle] > value) {
                high = middle - 1;
            } else {
                low = middle + 1;
            }
        }
        return high;
    }

    /** End of the last range; 0 when there is none. */
    public long endBytes() {
        if (parts != null) {
            return Arrays.stream(parts).mapToLong(WindowRanges::endBytes).max().orElse(0);
        }
        if (grid != null) {
            return grid.endBytes();
        }
        return toBytes.length == 0 ? 0 : toBytes[toBytes.length - 1];
    }

    /** Start of the first range; 0 when there is none. */
    public long beginBytes() {
        if (parts != null) {
            return Arrays.stream(parts)
                    .mapToLong(WindowRanges::beginBytes)
                    .min()
                    .orElse(0);
        }
        if (grid != null) {
            return grid.beginBytes();
        }
        return fromBytes.length == 0 ? 0 : fromBytes[0];
    }
}
