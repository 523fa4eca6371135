package io.kvmessenger.messenger;

import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.Piece;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;

/**
 * The way of one piece of a page from this prefiller's memory into a decoder's: all of a paged write but the pages. A
 * value, made once for each peer.
 *
 * @param layerOrdinal see {@link LayerOrder}
 */
record PieceRoute(
        int layerOrdinal,
        Region source,
        long sourceStrideBytes,
        long sourceOffsetBytes,
        RegionDescriptor target,
        long targetStrideBytes,
        long targetOffsetBytes,
        int lengthBytes) {

    static PieceRoute of(
            Piece piece,
            int layerOrdinal,
            Region source,
            LayerGeometry sourceLayer,
            RegionDescriptor target,
            LayerGeometry targetLayer) {
        return new PieceRoute(
                layerOrdinal,
                source,
                sourceLayer.pageStrideBytes(),
                sourceLayer.offsetBytes() + piece.sourceByteInPage(),
                target,
                targetLayer.pageStrideBytes(),
                targetLayer.offsetBytes() + piece.targetByteInPage(),
                piece.lengthBytes());
    }
}
