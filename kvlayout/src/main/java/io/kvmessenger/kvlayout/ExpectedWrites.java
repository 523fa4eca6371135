package io.kvmessenger.kvlayout;

/**
 * How many pieces a target rank will receive, by closed arithmetic: the decoder's own road, so that a wrong plan is
 * caught instead of awaited.
 *
 * <p>Pure functions; safe from any thread. It never runs the planner; tests hold the two together for every small shape.
 */
public final class ExpectedWrites {
    private ExpectedWrites() {}

    /**
     * Pieces that land in {@code pageCount} pages of each layer of the target rank. The geometries must be compatible.
     *
     * @param targetRankIndex position in the target's {@link KvGeometry#ranks()}
     */
    public static long pagePieces(KvGeometry source, KvGeometry target, int targetRankIndex, int pageCount) {
        if (pageCount < 0) {
            throw new IllegalArgumentException("pageCount is " + pageCount + ", expected at least 0");
        }
        RankGeometry rank = target.ranks().get(targetRankIndex);
        int sourceHeadsPerRank = source.sharding().headsPerRank(source.kvHeadCount());
        int firstSourceSet = rank.heads().from() / sourceHeadsPerRank;
        int lastSourceSet = (rank.heads().to() - 1) / sourceHeadsPerRank;
        int sourceSetCount = lastSourceSet - firstSourceSet + 1;
        boolean wholePages = sourceHeadsPerRank == rank.heads().count();
        int runsPerSet = switch (target.layout()) {
            case PageLayout.Hnd(), PageLayout.Latent() -> 1;
            case PageLayout.Nhd() -> wholePages ? 1 : target.pageTokens();
        };
        long piecesPerPage = (long) rank.layers().size() * sourceSetCount * runsPerSet;
        return Math.multiplyExact(piecesPerPage, pageCount);
    }
}
