package io.kvmessenger.kvlayout;

/**
 * The number of pieces that a target rank will receive, in closed form for each group. Computed independently of the
 * planner, so that a planner bug fails instead of waiting for pieces that never come.
 *
 * <p>Pure functions; safe from any thread. It never runs the planner; tests compare the two for every small shape.
 */
public final class ExpectedWrites {
    private final KvGeometry source;
    private final KvGeometry target;
    private final RankGeometry rank;
    private final int firstToken;
    private final int tokenCount;

    private ExpectedWrites(KvGeometry source, KvGeometry target, RankGeometry rank, int firstToken, int tokenCount) {
        this.source = source;
        this.target = target;
        this.rank = rank;
        this.firstToken = firstToken;
        this.tokenCount = tokenCount;
    }

    /**
     * Number of pieces with tokens {@code [firstToken, tokenCount)} of a request, in all layers of the target rank,
     * from all ranks of the source's engine, including those of other messengers. The pages must be compatible. A piece of
     * divided pages counts once for each rank that may have it.
     *
     * @param targetRankIndex position in the target's {@link KvGeometry#ranks()}
     * @param firstToken the first token of one of the target's pages, in each group
     */
    public static long pieceCount(
            KvGeometry source, KvGeometry target, int targetRankIndex, int firstToken, int tokenCount) {
        RankGeometry rank = target.ranks().get(targetRankIndex);
        ExpectedWrites expected = new ExpectedWrites(source, target, rank, firstToken, tokenCount);
        long count = 0;
        for (int group = 0; group < target.groups().size(); group++) {
            HeadRange heads = target.headsOf(rank, group);
            int firstSourceSet = heads.from() / expected.sourceHeadsPerRank(group);
            int lastSourceSet = (heads.to() - 1) / expected.sourceHeadsPerRank(group);
            int runs = lastSourceSet - firstSourceSet + 1;
            count += expected.times(
                    group,
                    rank.layerCountOf(group),
                    runs * source.groups().get(group).pageShares());
        }
        return count;
    }

    /** As {@link #pieceCount}, but only from the ranks that the source lists. */
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
            for (int group = 0; group < target.groups().size(); group++) {
                if (source.headsOf(from, group).overlaps(target.headsOf(rank, group))
                        && draw.sends(source, target, group, from, rank)) {
                    count += expected.times(group, commonLayerCount(from, rank, group), 1);
                }
            }
        }
        return count;
    }

    /**
     * Number of pieces that one of the source's ranks does not send for each page of a divided group that another rank
     * has: that group's layers on all of the target's ranks.
     */
    public static int piecesOfPage(KvGeometry source, RankGeometry from, KvGeometry target, int group) {
        return target.ranks().stream()
                .mapToInt(to -> commonLayerCount(from, to, group))
                .sum();
    }

    private static int commonLayerCount(RankGeometry from, RankGeometry to, int group) {
        return (int) from.layers().stream()
                .filter(layer -> layer.groupIndex() == group && to.layerIndex(layer.name()) >= 0)
                .count();
    }

    private int sourceHeadsPerRank(int group) {
        return source.sharding().headsPerRank(source.groups().get(group).kvHeadCount());
    }

    private long times(int group, int layerCount, int runs) {
        return Math.multiplyExact((long) layerCount * runs, (long) partCount(group));
    }

    /** Number of parts with these tokens, in pages of the group. */
    private int partCount(int group) {
        KvGroup from = source.groups().get(group);
        KvGroup to = target.groups().get(group);
        if (firstToken < 0 || tokenCount < firstToken || firstToken % to.pageTokens() != 0) {
            throw new IllegalArgumentException("token range is [" + firstToken + ", " + tokenCount
                    + "), expected 0 <= from <= to with from a multiple of pageTokens, " + to.pageTokens());
        }
        boolean tokenByToken = to.layout().equals(PageLayout.NHD)
                && sourceHeadsPerRank(group) != target.headsOf(rank, group).count();
        int partTokens = tokenByToken ? 1 : Math.min(from.pageTokens(), to.pageTokens());
        int pagesBefore = (tokenCount - neededTokens(to.kind())) / to.pageTokens();
        int partsBefore = Math.max(firstToken, pagesBefore * to.pageTokens()) / partTokens;
        return Math.ceilDiv(tokenCount, partTokens) - partsBefore;
    }

    /** How many tokens the last one attends to, including itself. */
    private int neededTokens(GroupKind kind) {
        return switch (kind) {
            case GroupKind.FullAttention _, GroupKind.State _ -> tokenCount;
            case GroupKind.SlidingWindow(int windowTokens) -> Math.min(tokenCount, windowTokens);
            case GroupKind.ChunkedLocal(int chunkTokens) ->
                tokenCount % chunkTokens == 0 ? Math.min(tokenCount, chunkTokens) : tokenCount % chunkTokens;
        };
    }
}
