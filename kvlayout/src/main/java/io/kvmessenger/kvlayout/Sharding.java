package io.kvmessenger.kvlayout;

/**
 * How an engine is divided into ranks: heads over TP, layers over PP; DP replicas are separate engines with the same
 * geometry.
 */
public record Sharding(int tpSize, int ppSize, int dpSize) {
    /** Limit on the ranks of one engine, and on the engines of one model; bounds the cost of malformed input. */
    public static final int RANK_COUNT_MAX = 4096;

    public static final Sharding ALONE = new Sharding(1, 1, 1);

    public Sharding {
        requireSize("tpSize", tpSize);
        requireSize("ppSize", ppSize);
        requireSize("dpSize", dpSize);
        if (tpSize * ppSize > RANK_COUNT_MAX) {
            throw new IllegalArgumentException("tpSize is " + tpSize + " and ppSize is " + ppSize
                    + ", expected at most " + RANK_COUNT_MAX + " ranks together");
        }
    }

    private static void requireSize(String name, int value) {
        if (value < 1 || value > RANK_COUNT_MAX) {
            throw new IllegalArgumentException(
                    name + " is " + value + ", expected at least 1 and at most " + RANK_COUNT_MAX);
        }
    }

    /** Heads of each rank: with more ranks than heads every rank has one, and neighbouring ranks hold the same. */
    public int headsPerRank(int kvHeadCount) {
        boolean divides = kvHeadCount >= tpSize ? kvHeadCount % tpSize == 0 : tpSize % kvHeadCount == 0;
        if (!divides) {
            throw new IllegalArgumentException("tpSize is " + tpSize + " with " + kvHeadCount
                    + " KV heads, expected one to be a multiple of the other: choose another tensor parallel size");
        }
        return Math.max(1, kvHeadCount / tpSize);
    }

    /** Number of ranks with the same heads: 1 unless there are more ranks than heads. */
    public int replicaCount(int kvHeadCount) {
        return tpSize * headsPerRank(kvHeadCount) / kvHeadCount;
    }

    public HeadRange headsOf(int tpRank, int kvHeadCount) {
        if (tpRank < 0 || tpRank >= tpSize) {
            throw new IllegalArgumentException("tpRank is " + tpRank + ", expected 0 to " + (tpSize - 1));
        }
        int headsPerRank = headsPerRank(kvHeadCount);
        int from = kvHeadCount >= tpSize ? tpRank * headsPerRank : tpRank / (tpSize / kvHeadCount);
        return new HeadRange(from, from + headsPerRank);
    }

    @Override
    public String toString() {
        return "TP " + tpSize + " x PP " + ppSize + " x DP " + dpSize;
    }
}
