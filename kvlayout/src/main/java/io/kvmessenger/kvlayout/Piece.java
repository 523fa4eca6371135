package io.kvmessenger.kvlayout;

/**
 * A run of bytes that goes from each part of the source's pages to a part of the target's, whichever pages those are.
 *
 * <p>A part holds {@code partTokens} tokens: part {@code i} of a request holds its tokens from {@code i * partTokens}, on
 * both sides. It is a page where both sides cut pages alike, the smaller page where page sizes differ, and a single token
 * where an NHD page is split by heads.
 *
 * @param sourceRankIndex position in the source's {@link KvGeometry#ranks()}
 * @param targetRankIndex position in the target's {@link KvGeometry#ranks()}
 * @param layerIndex position in the source rank's {@link RankGeometry#layers()}
 * @param targetLayerIndex position of the same layer in the target rank's {@link RankGeometry#layers()}
 * @param lengthBytes bytes of one part
 * @param groupIndex of the layer, on both sides: the page lists that the parts are counted in
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

    /** The part that begins with a token; the token must be the first of a page of either side. */
    public int partIndex(int firstToken) {
        return firstToken / partTokens;
    }

    /** The parts that hold at least one of the request's first {@code tokenCount} tokens. */
    public int partCount(int tokenCount) {
        return Math.ceilDiv(tokenCount, partTokens);
    }

    /** Both sides' pages are taken apart for it: many small writes, of which another layout would need one. */
    public boolean isStrided() {
        return source.countPerPage() > 1 && target.countPerPage() > 1;
    }
}
