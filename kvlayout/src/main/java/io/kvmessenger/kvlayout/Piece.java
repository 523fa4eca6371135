package io.kvmessenger.kvlayout;

/**
 * A run of bytes that goes from a source page to a target page, whichever pages those are.
 *
 * @param sourceRankIndex position in the source's {@link KvGeometry#ranks()}
 * @param targetRankIndex position in the target's {@link KvGeometry#ranks()}
 * @param layerIndex position in the source rank's {@link RankGeometry#layers()}
 * @param targetLayerIndex position of the same layer in the target rank's {@link RankGeometry#layers()}
 */
public record Piece(
        int sourceRankIndex,
        int targetRankIndex,
        int layerIndex,
        int targetLayerIndex,
        int sourceByteInPage,
        int targetByteInPage,
        int lengthBytes) {}
