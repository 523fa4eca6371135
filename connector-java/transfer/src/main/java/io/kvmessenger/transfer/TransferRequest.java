package io.kvmessenger.transfer;

/** A request for {@link TransferEngine#submit}. Its arrays belong to the engine until the completion. */
public sealed interface TransferRequest {
    /** Largest weight of one page, or of one write that carries no page. */
    int WEIGHT_MAX = Imm.WEIGHT_MAX;

    /** The window that it lands and is counted in. */
    RemoteWindow window();

    /** The weight of one page, or of the write: 1 to {@link #WEIGHT_MAX}. */
    int weight();

    /** That of its window: writes of one transfer do not overtake each other by their class. */
    default TrafficClass trafficClass() {
        return window().trafficClass();
    }

    record SingleWrite(
            Region source,
            long sourceOffsetBytes,
            RegionDescriptor target,
            long targetOffsetBytes,
            long lengthBytes,
            RemoteWindow window,
            int weight)
            implements TransferRequest {}

    /**
     * Pages of one size. Page {@code i} goes from {@code sourcePages.offsetOf(i)} to {@code targetPages.offsetOf(i)}.
     *
     * @param weight of <em>one page</em>, at least 1: the landing of an uncounted page could never be proven. The
     *     engine may merge pages into one write and add their weights.
     */
    record PagedWrites(
            Region source,
            PageList sourcePages,
            RegionDescriptor target,
            PageList targetPages,
            int pageBytes,
            RemoteWindow window,
            int weight)
            implements TransferRequest {
        public PagedWrites {
            if (sourcePages.count() != targetPages.count()) {
                throw new IllegalArgumentException(
                        sourcePages.count() + " source pages, " + targetPages.count() + " target pages");
            }
        }
    }

    /** An immediate without bytes; it arrives like that of a write, in no order relative to others. */
    record ImmOnly(RemoteWindow window, int weight) implements TransferRequest {}

    /**
     * A list of pages and their layout: page {@code i} starts at {@code offsetBytes + indices[from + i] * strideBytes}.
     *
     * <p>With {@code partsPerPage} above 1 the list is one of page parts: part {@code p} lies
     * {@code partStrideBytes * (p % partsPerPage)} into page {@code indices[p / partsPerPage]}; {@code from} and
     * {@code count} are in parts, and each part is written and counted as a page.
     *
     * @param indices page indices; entries {@code from} to {@code from + count} are used
     */
    record PageList(
            int[] indices,
            int from,
            int count,
            long strideBytes,
            long offsetBytes,
            int partsPerPage,
            long partStrideBytes) {
        public PageList {
            java.util.Objects.checkFromIndexSize(from, count, (long) indices.length * partsPerPage);
        }

        /** Whole pages. */
        public PageList(int[] indices, int from, int count, long strideBytes, long offsetBytes) {
            this(indices, from, count, strideBytes, offsetBytes, 1, 0);
        }

        /** Offset of page i in its region, in bytes. */
        public long offsetOf(int i) {
            int part = from + i;
            return partsPerPage == 1
                    ? offsetBytes + indices[part] * strideBytes
                    : offsetBytes + indices[part / partsPerPage] * strideBytes + part % partsPerPage * partStrideBytes;
        }

        /**
         * Number of pages from page {@code i} on, at most {@code limit}, that are contiguous in both lists: one write
         * may carry them, with their weights added. At least 1. Allocates nothing.
         */
        public static int runLength(PageList sourcePages, PageList targetPages, long pageBytes, int i, int limit) {
            if (!sourcePages.isGapless(pageBytes) || !targetPages.isGapless(pageBytes)) {
                return 1;
            }
            int end = Math.min(i + limit, sourcePages.count);
            int next = i + 1;
            while (next < end && sourcePages.follows(next) && targetPages.follows(next)) {
                next++;
            }
            return next - i;
        }

        /** Whether a page ends where the next index begins: otherwise no two pages touch, and none are compared. */
        private boolean isGapless(long pageBytes) {
            return (partsPerPage == 1 ? strideBytes : partStrideBytes) == pageBytes;
        }

        private boolean follows(int i) {
            int part = from + i;
            return partsPerPage == 1
                    ? indices[part] == indices[part - 1] + 1
                    : part % partsPerPage > 0 || offsetOf(i) == offsetOf(i - 1) + partStrideBytes;
        }
    }
}
