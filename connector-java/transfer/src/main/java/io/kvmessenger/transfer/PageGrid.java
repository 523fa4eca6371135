package io.kvmessenger.transfer;

import java.util.Arrays;
import java.util.BitSet;
import java.util.Optional;

/**
 * The same pages in many layers, stored as a set of pages and a list of layers rather than as ranges: O(pages + layers)
 * to build, and lookups without a search among pages.
 *
 * <p>Immutable; safe from any thread. Layers are laid out either one after the other, or side by side within every
 * page.
 */
final class PageGrid {
    private final BitSet pages;
    /** Start of each row of pages, ascending: one row per layer, or one for all layers that lie side by side. */
    private final long[] rowsFromBytes;

    private final long[] strideBytes;
    /** By row: the byte runs of a page, relative to its start; adjacent layers are merged into one run. */
    private final long[][] runsFromBytes;

    private final long[][] runsToBytes;

    private PageGrid(BitSet pages, long[] rowsFromBytes, long[] strideBytes, long[][] runsFrom, long[][] runsTo) {
        this.pages = pages;
        this.rowsFromBytes = rowsFromBytes;
        this.strideBytes = strideBytes;
        this.runsFromBytes = runsFrom;
        this.runsToBytes = runsTo;
    }

    /** Empty when the layers have neither layout; arguments as in {@link WindowRanges#ofPages}. */
    static Optional<PageGrid> of(BitSet pages, long[] layerOffsets, long[] layerStrides, long[] layerPageBytes) {
        int[] order = WindowRanges.order(layerOffsets);
        long[] offsets = Arrays.stream(order).mapToLong(i -> layerOffsets[i]).toArray();
        long[] strides = Arrays.stream(order).mapToLong(i -> layerStrides[i]).toArray();
        long[] pageBytes =
                Arrays.stream(order).mapToLong(i -> layerPageBytes[i]).toArray();
        if (sideBySide(offsets, strides, pageBytes)) {
            return Optional.of(oneRow(pages, offsets, strides[0], pageBytes));
        }
        // With page 0 alone, layers may touch that are joined in one write, and a grid would save nothing.
        if (pages.length() == 1 || !oneAfterTheOther(pages, offsets, strides, pageBytes)) {
            return Optional.empty();
        }
        long[][] from = new long[order.length][1];
        long[][] to = Arrays.stream(pageBytes).mapToObj(b -> new long[] {b}).toArray(long[][]::new);
        return Optional.of(new PageGrid(pages, offsets, strides, from, to));
    }

    private static boolean oneAfterTheOther(BitSet pages, long[] offsets, long[] strides, long[] pageBytes) {
        for (int i = 1; i < offsets.length; i++) {
            if (offsets[i - 1] + (pages.length() - 1) * strides[i - 1] + pageBytes[i - 1] > offsets[i]) {
                return false;
            }
        }
        return true;
    }

    private static boolean sideBySide(long[] offsets, long[] strides, long[] pageBytes) {
        int last = offsets.length - 1;
        for (int i = 0; i < last; i++) {
            if (strides[i] != strides[last] || offsets[i] + pageBytes[i] > offsets[i + 1]) {
                return false;
            }
        }
        return offsets[last] + pageBytes[last] <= offsets[0] + strides[last];
    }

    private static PageGrid oneRow(BitSet pages, long[] offsets, long strideBytes, long[] pageBytes) {
        long[] from = new long[offsets.length];
        long[] to = new long[offsets.length];
        int count = 0;
        for (int i = 0; i < offsets.length; i++) {
            long at = offsets[i] - offsets[0];
            if (count == 0 || to[count - 1] != at) {
                from[count++] = at;
            }
            to[count - 1] = at + pageBytes[i];
        }
        return new PageGrid(
                pages,
                new long[] {offsets[0]},
                new long[] {strideBytes},
                new long[][] {Arrays.copyOf(from, count)},
                new long[][] {Arrays.copyOf(to, count)});
    }

    /** Whether all bytes belong to granted pages; across pages only where they touch in one row. Allocates nothing. */
    boolean contains(long offsetBytes, long lengthBytes) {
        int row = WindowRanges.lastNotAbove(rowsFromBytes, offsetBytes);
        if (row < 0 || lengthBytes < 0 || lengthBytes > endBytes() - offsetBytes) {
            return false;
        }
        long inRow = offsetBytes - rowsFromBytes[row];
        long stride = strideBytes[row];
        long page = inRow / stride;
        long from = inRow - page * stride;
        long left = lengthBytes;
        while (page < pages.length() && pages.get((int) page)) {
            int run = WindowRanges.lastNotAbove(runsFromBytes[row], from);
            long fit = run < 0 ? -1 : runsToBytes[row][run] - from;
            if (left <= fit) {
                return fit > 0;
            }
            if (fit <= 0 || from + fit != stride) {
                return false;
            }
            left -= fit;
            from = 0;
            page++;
        }
        return false;
    }

    long beginBytes() {
        return rowsFromBytes[0] + pages.nextSetBit(0) * strideBytes[0] + runsFromBytes[0][0];
    }

    long endBytes() {
        int last = rowsFromBytes.length - 1;
        long[] runsTo = runsToBytes[last];
        return rowsFromBytes[last] + (pages.length() - 1) * strideBytes[last] + runsTo[runsTo.length - 1];
    }
}
