package io.kvmessenger.kvlayout;

/** KV heads {@code from} to {@code to - 1}; never empty. */
public record HeadRange(int from, int to) {
    public HeadRange {
        if (from < 0 || to <= from) {
            throw new IllegalArgumentException(
                    "head range is [" + from + ", " + to + "), expected a non-empty range of heads from 0");
        }
    }

    public int count() {
        return to - from;
    }

    public boolean overlaps(HeadRange other) {
        return from < other.to && other.from < to;
    }

    /** The heads in both; they must overlap. */
    public HeadRange intersection(HeadRange other) {
        return new HeadRange(Math.max(from, other.from), Math.min(to, other.to));
    }

    @Override
    public String toString() {
        return "[" + from + ", " + to + ")";
    }
}
