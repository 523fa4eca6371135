package io.kvmessenger.kvlayout;

/**
 * A run of bytes that is copied from each part of the source's pages to a part of the target's, whichever pages those
 * are.
 *
 * <p>A part holds {@code partTokens} tokens: part {@code i} of a request holds its tokens from {@code i * partTokens}
 * on, on both sides. It is a page if both sides have the same pages, the smaller page if page sizes differ, and a
 * single token if an NHD page is split by heads.
 *
 * @param sourceRankIndex position in the source's {@link KvGeometry#ranks()}
 * @param targetRankIndex position in the target's {@link KvGeometry#ranks()}
 * @param layerIndex position in the source rank's {@link RankGeometry#layers()}
 * @param targetLayerIndex position of the same layer in the target rank's {@link RankGeometry#layers()}
 * @param lengthBytes length of one part
 * @param groupIndex of the layer, on both sides: selects the page lists in which the parts are counted
 */
public record Piece(
        int sourceRankIndex,
        int targetRankIndex,
        int layerIndex,
        int targetLayerIndex,
        int groupIndex,
        int partTokens,
        PageParts source,
        PageParts target,
        int lengthBytes) {

    /** Index of the part that begins with a token, which must be the first of a page of either side. */
    public int partIndex(int firstToken) {
        return firstToken / partTokens;
    }

    /** Number of parts with at least one of the request's first {@code tokenCount} tokens. */
    public int partCount(int tokenCount) {
        return Math.ceilDiv(tokenCount, partTokens);
    }

    /** Whether both sides' pages are split for it: many small writes, where another layout would need only one. */
    public boolean isStrided() {
        return source.countPerPage() > 1 && target.countPerPage() > 1;
    }
}
