package io.kvmessenger.transfer;

/** What can be asked of {@link TransferEngine#submit}. Arrays belong to the engine until the completion. */
public sealed interface TransferRequest {
    /** One contiguous write. */
    record SingleWrite(
            Region source,
            long sourceOffsetBytes,
            RegionDescriptor target,
            long targetOffsetBytes,
            long lengthBytes,
            int imm)
            implements TransferRequest {}

    /**
     * Pages of one size. Page {@code i} goes from {@code sourcePages.offsetOf(i)} to {@code targetPages.offsetOf(i)}.
     *
     * @param imm slot, generation and the weight of <em>one page</em>; weight zero to count nothing. The engine may merge
     *     pages into one write and add their weights.
     */
    record PagedWrites(
            Region source, PageList sourcePages, RegionDescriptor target, PageList targetPages, int pageBytes, int imm)
            implements TransferRequest {
        public PagedWrites {
            if (sourcePages.count() != targetPages.count()) {
                throw new IllegalArgumentException(
                        sourcePages.count() + " source pages, " + targetPages.count() + " target pages");
            }
        }
    }

    /** Only an immediate; it arrives like that of a write, in no order with any other. */
    record ImmOnly(int imm) implements TransferRequest {}

    /**
     * Which pages, and where they lie: page {@code i} starts at {@code offsetBytes + indices[from + i] * strideBytes}.
     *
     * @param indices page indices; entries {@code from} to {@code from + count} are used
     */
    record PageList(int[] indices, int from, int count, long strideBytes, long offsetBytes) {
        public PageList {
            java.util.Objects.checkFromIndexSize(from, count, indices.length);
        }

        public long offsetOf(int i) {
            return offsetBytes + indices[from + i] * strideBytes;
        }
    }
}
