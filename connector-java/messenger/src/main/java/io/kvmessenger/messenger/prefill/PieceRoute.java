package io.kvmessenger.messenger.prefill;

import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageParts;
import io.kvmessenger.kvlayout.Piece;
import io.kvmessenger.kvlayout.TransferPlan;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferRequest.PageList;

/**
 * The route of one piece of a page from this prefiller's memory into a decoder's: a paged write without its pages. A
 * value, made once per peer.
 *
 * @param layerOrdinal see {@link LayerOrder}
 * @param continuation index, among the routes to the same peer, of the piece that lies directly behind this one in
 *     every page on both sides; {@link TransferPlan#NONE} if there is none
 */
record PieceRoute(
        Piece piece,
        int layerOrdinal,
        Region source,
        LayerGeometry sourceLayer,
        RegionDescriptor target,
        LayerGeometry targetLayer,
        int continuation) {

    int groupIndex() {
        return piece.groupIndex();
    }

    /** Parts {@code [from, from + count)} of a request's pages on this side. */
    PageList sourceParts(int[] pages, int from, int count) {
        return parts(pages, from, count, sourceLayer, piece.source());
    }

    /** Parts {@code [from, from + count)} of the granted pages. */
    PageList targetParts(int[] pages, int from, int count) {
        return parts(pages, from, count, targetLayer, piece.target());
    }

    private static PageList parts(int[] pages, int from, int count, LayerGeometry layer, PageParts parts) {
        return new PageList(
                pages,
                from,
                count,
                layer.pageStrideBytes(),
                layer.offsetBytes() + parts.byteInPage(),
                parts.countPerPage(),
                parts.strideBytes());
    }
}
