package io.kvmessenger.kvlayout;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Plans which bytes of a source page go where in a target page: with equal sharding and equal pages one whole page from
 * each rank to its twin, otherwise the heads and tokens that both pages hold.
 *
 * <p>Pure functions of both descriptions; safe from any thread. It does not choose pages.
 */
public final class LayoutPlanner {
    private final KvGeometry source;
    private final KvGeometry target;
    /** The smaller of both page sizes; the other is a multiple of it. */
    private final int smallerPageTokens;

    private LayoutPlanner(KvGeometry source, KvGeometry target) {
        this.source = source;
        this.target = target;
        this.smallerPageTokens = Math.min(source.pageTokens(), target.pageTokens());
    }

    /**
     * What the source sends when nothing is drawn.
     *
     * @throws PlanException when {@link Compatibility#check} finds a mismatch
     */
    public static TransferPlan plan(KvGeometry source, KvGeometry target) {
        requireNone(Compatibility.check(source, target));
        return plan(source, target, SourceDraw.TWINS);
    }

    /**
     * What the source's ranks send when other messengers may serve its replicas or its other heads and layers.
     *
     * @throws PlanException when {@link Compatibility#checkPages} finds a mismatch
     */
    public static TransferPlan plan(KvGeometry source, KvGeometry target, SourceDraw draw) {
        requireNone(Compatibility.checkPages(source, target));
        return new LayoutPlanner(source, target).plan(draw);
    }

    private static void requireNone(Optional<Mismatch> mismatch) {
        if (mismatch.isPresent()) {
            throw new PlanException(mismatch.get());
        }
    }

    private TransferPlan plan(SourceDraw draw) {
        List<Piece> pieces = new ArrayList<>();
        for (int s = 0; s < source.ranks().size(); s++) {
            for (int t = 0; t < target.ranks().size(); t++) {
                RankGeometry from = source.ranks().get(s);
                RankGeometry to = target.ranks().get(t);
                if (from.heads().overlaps(to.heads()) && draw.sends(source, from, to)) {
                    addLayers(pieces, s, t);
                }
            }
        }
        return new TransferPlan(source, target, pieces);
    }

    private void addLayers(List<Piece> pieces, int sourceRankIndex, int targetRankIndex) {
        RankGeometry from = source.ranks().get(sourceRankIndex);
        RankGeometry to = target.ranks().get(targetRankIndex);
        for (int layerIndex = 0; layerIndex < from.layers().size(); layerIndex++) {
            LayerGeometry layer = from.layers().get(layerIndex);
            int targetLayerIndex = to.layerIndex(layer.name());
            if (targetLayerIndex >= 0) {
                Cut cut = cut(from.heads(), to.heads(), layer.pageBytes());
                pieces.add(new Piece(
                        sourceRankIndex,
                        targetRankIndex,
                        layerIndex,
                        targetLayerIndex,
                        cut.partTokens,
                        cut.source,
                        cut.target,
                        cut.lengthBytes));
            }
        }
    }

    /** A piece but for the ranks and the layer. */
    private record Cut(int partTokens, PageParts source, PageParts target, int lengthBytes) {}

    private Cut cut(HeadRange from, HeadRange to, int sourcePageBytes) {
        boolean equalHeads = from.equals(to);
        if (equalHeads && source.pageTokens() == target.pageTokens()) {
            return new Cut(source.pageTokens(), PageParts.whole(0), PageParts.whole(0), sourcePageBytes);
        }
        int headPageBytes = sourcePageBytes / from.count();
        return switch (source.layout()) {
            case PageLayout.Hnd() -> headRange(from, to, headPageBytes);
            case PageLayout.Nhd() -> rows(from, to, headPageBytes / source.pageTokens(), equalHeads);
            case PageLayout.Latent() -> rows(from, to, headPageBytes / source.pageTokens(), true);
        };
    }

    /** HND, whose pages are equal: the common heads are one run. */
    private Cut headRange(HeadRange from, HeadRange to, int headPageBytes) {
        HeadRange common = from.intersection(to);
        return new Cut(
                source.pageTokens(),
                PageParts.whole((common.from() - from.from()) * headPageBytes),
                PageParts.whole((common.from() - to.from()) * headPageBytes),
                common.count() * headPageBytes);
    }

    /** Tokens first: rows of whole tokens where heads are equal, else the common heads of each token. */
    private Cut rows(HeadRange from, HeadRange to, int headRowBytes, boolean equalHeads) {
        HeadRange common = from.intersection(to);
        int partTokens = equalHeads ? smallerPageTokens : 1;
        return new Cut(
                partTokens,
                parts(
                        source,
                        partTokens,
                        (common.from() - from.from()) * headRowBytes,
                        partTokens * from.count() * headRowBytes),
                parts(
                        target,
                        partTokens,
                        (common.from() - to.from()) * headRowBytes,
                        partTokens * to.count() * headRowBytes),
                partTokens * common.count() * headRowBytes);
    }

    private static PageParts parts(KvGeometry side, int partTokens, int byteInPage, int strideBytes) {
        int countPerPage = side.pageTokens() / partTokens;
        return countPerPage == 1 ? PageParts.whole(byteInPage) : new PageParts(byteInPage, countPerPage, strideBytes);
    }
}
