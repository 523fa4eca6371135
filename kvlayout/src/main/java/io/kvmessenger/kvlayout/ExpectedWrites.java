package io.kvmessenger.kvlayout;

/**
 * How many pieces a target rank will receive, by closed arithmetic: the decoder's own road, so that a wrong plan is
 * caught instead of awaited.
 *
 * <p>Pure functions; safe from any thread. It never runs the planner; tests hold the two together for every small shape.
 */
public final class ExpectedWrites {
    private final KvGeometry source;
    private final RankGeometry rank;
    private final int partCount;

    private ExpectedWrites(KvGeometry source, KvGeometry target, RankGeometry rank, int firstToken, int tokenCount) {
        if (firstToken < 0 || tokenCount < firstToken || firstToken % target.pageTokens() != 0) {
            throw new IllegalArgumentException("token range is [" + firstToken + ", " + tokenCount
                    + "), expected 0 <= from <= to with from a multiple of pageTokens, " + target.pageTokens());
        }
        this.source = source;
        this.rank = rank;
        int smallerPageTokens = Math.min(source.pageTokens(), target.pageTokens());
        boolean tokenByToken = target.layout().equals(PageLayout.NHD) && sourceHeadsPerRank() != headCount();
        int partTokens = tokenByToken ? 1 : smallerPageTokens;
        this.partCount = Math.ceilDiv(tokenCount, partTokens) - firstToken / partTokens;
    }

    /**
     * Pieces that hold tokens {@code [firstToken, tokenCount)} of a request, in all layers of the target rank, from all
     * ranks of the source's engine, also those of other messengers. The pages must be compatible.
     *
     * @param targetRankIndex position in the target's {@link KvGeometry#ranks()}
     * @param firstToken the first of one of the target's pages
     */
    public static long pieceCount(
            KvGeometry source, KvGeometry target, int targetRankIndex, int firstToken, int tokenCount) {
        RankGeometry rank = target.ranks().get(targetRankIndex);
        ExpectedWrites expected = new ExpectedWrites(source, target, rank, firstToken, tokenCount);
        int firstSourceSet = rank.heads().from() / expected.sourceHeadsPerRank();
        int lastSourceSet = (rank.heads().to() - 1) / expected.sourceHeadsPerRank();
        return expected.times(rank.layers().size(), lastSourceSet - firstSourceSet + 1);
    }

    /** As {@link #pieceCount}, from the ranks that the source lists alone. */
    public static long pieceCountFrom(
            KvGeometry source,
            KvGeometry target,
            int targetRankIndex,
            int firstToken,
            int tokenCount,
            SourceDraw draw) {
        RankGeometry rank = target.ranks().get(targetRankIndex);
        ExpectedWrites expected = new ExpectedWrites(source, target, rank, firstToken, tokenCount);
        long count = 0;
        for (RankGeometry from : source.ranks()) {
            if (from.heads().overlaps(rank.heads()) && draw.sends(source, from, rank)) {
                count += expected.times(commonLayerCount(from, rank), 1);
            }
        }
        return count;
    }

    private static int commonLayerCount(RankGeometry from, RankGeometry to) {
        return (int) from.layers().stream()
                .filter(layer -> to.layerIndex(layer.name()) >= 0)
                .count();
    }

    private int headCount() {
        return rank.heads().count();
    }

    private int sourceHeadsPerRank() {
        return source.sharding().headsPerRank(source.kvHeadCount());
    }

    private long times(int layerCount, int runs) {
        return Math.multiplyExact((long) layerCount * runs, (long) partCount);
    }
}
