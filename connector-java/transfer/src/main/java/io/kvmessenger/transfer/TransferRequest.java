package io.kvmessenger.transfer;

/** What can be asked of {@link TransferEngine#submit}. Arrays belong to the engine until the completion. */
public sealed interface TransferRequest {
    /** The most that one page, or one write that carries no page, can weigh. */
    int WEIGHT_MAX = Imm.WEIGHT_MAX;

    /** Where it lands and is counted. */
    RemoteWindow window();

    /** What one page, or the write, counts for: 1 to {@link #WEIGHT_MAX}. */
    int weight();

    /** One contiguous write. */
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
     * @param weight of <em>one page</em>, at least 1: what lands uncounted could never be proven to have landed. The engine
     *     may merge pages into one write and add their weights.
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

    /** Only an immediate; it arrives like that of a write, in no order with any other. */
    record ImmOnly(RemoteWindow window, int weight) implements TransferRequest {}

    /**
     * Which pages, and where they lie: page {@code i} starts at {@code offsetBytes + indices[from + i] * strideBytes}.
     *
     * <p>With {@code partsPerPage} above 1 the list is one of page parts: part {@code p} lies {@code partStrideBytes *
     * (p % partsPerPage)} into page {@code indices[p / partsPerPage]}; {@code from} and {@code count} are in parts, and
     * what is written or counted as a page is a part.
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

        /** Where page i begins in its region. */
        public long offsetOf(int i) {
            int part = from + i;
            return partsPerPage == 1
                    ? offsetBytes + indices[part] * strideBytes
                    : offsetBytes + indices[part / partsPerPage] * strideBytes + part % partsPerPage * partStrideBytes;
        }

        /**
         * How many pages from page {@code i} on, at most {@code limit}, follow each other without a gap in both lists:
         * one write may carry them, with their weights added. At least 1. Allocates nothing.
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

        /** Whether a page ends where the next index begins: otherwise no two can touch, and none has to be looked at. */
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
