package io.kvmessenger.messenger;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.LayoutPlanner;
import io.kvmessenger.kvlayout.Piece;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.util.ArrayList;
import java.util.List;

/**
 * The only translator between layout and transfer: turns "pages of a layer" into paged writes.
 *
 * <p>Owned by the messenger's thread. Writes in flight come from a pool that grows to the high-water mark and stays.
 */
final class LayerWriter {
    /** Pages submitted in one write: bounds what one completion stands for. */
    static final int PAGES_PER_WRITE_MAX = 512;

    private final KvGeometry geometry;
    private final Region region;
    private final TransferEngine transfer;
    private final List<LayerGeometry> layers;
    private final List<LayerWrite> writes = new ArrayList<>();
    private final List<LayerWrite> free = new ArrayList<>();

    LayerWriter(KvGeometry geometry, Region region, TransferEngine transfer) {
        this.geometry = geometry;
        this.region = region;
        this.transfer = transfer;
        this.layers = geometry.ranks().getFirst().layers();
    }

    int layerCount() {
        return layers.size();
    }

    int pageCount(int tokens) {
        return Math.ceilDiv(tokens, geometry.pageTokens());
    }

    int inFlightCount() {
        return writes.size() - free.size();
    }

    /** What one page is made of on its way to a decoder with this geometry, in the order in which layers fire. */
    List<Piece> piecesFor(KvGeometry peer) {
        return LayoutPlanner.plan(geometry, peer).pieces().toList();
    }

    /** Why a grant cannot be served; empty when it can. */
    String unfit(PageGrant grant) {
        int pages = pageCount(grant.promptTokens()) - grant.firstToken() / geometry.pageTokens();
        if (grant.promptTokens() < 1
                || grant.firstToken() < 0
                || grant.firstToken() % geometry.pageTokens() != 0
                || grant.pages().length != pages) {
            return "the grant of transfer " + grant.transferId() + " has " + grant.pages().length + " pages for tokens "
                    + grant.firstToken() + " to " + grant.promptTokens();
        }
        int peerPages = grant.session().peerGeometry.ranks().getFirst().pageCount();
        for (int page : grant.pages()) {
            if (page < 0 || page >= peerPages) {
                return "the grant of transfer " + grant.transferId() + " names page " + page + " of " + peerPages;
            }
        }
        return "";
    }

    /** Tells the transfer engine where the grant lets us write: exactly the granted pages of every layer. */
    void allow(PageGrant grant) {
        if (grant.session().peer != null) {
            transfer.allow(
                    grant.session().peer,
                    grant.session().peerRegions.getFirst(),
                    grant.imm(),
                    GrantedRanges.of(grant.session().peerGeometry, grant.pages()));
        }
    }

    /** Takes it back; writes already accepted still complete. */
    void disallow(PageGrant grant) {
        if (grant.session().peer != null) {
            transfer.disallow(grant.session().peer, grant.imm());
        }
    }

    /**
     * Submits one piece of pages {@code [nextPage[piece], toPage)}, and moves {@code nextPage} by what was taken.
     *
     * @return the result of the last {@link TransferEngine#submit}
     */
    int submit(Prefill prefill, int pieceIndex, int toPage) {
        int result = TransferEngine.ACCEPTED;
        while (result == TransferEngine.ACCEPTED && prefill.nextPage[pieceIndex] < toPage) {
            int upTo = Math.min(toPage, prefill.nextPage[pieceIndex] + PAGES_PER_WRITE_MAX);
            result = submitOnce(prefill, pieceIndex, upTo);
        }
        return result;
    }

    LayerWrite complete(int cookie) {
        return writes.get(cookie);
    }

    void recycle(LayerWrite write) {
        write.prefill = null;
        free.add(write);
    }

    String refusalOf(int result, PageGrant grant) {
        return result == TransferEngine.REFUSED
                ? transfer.refusal()
                : "the data paths to " + grant.session().peerName() + " are gone";
    }

    private int submitOnce(Prefill prefill, int pieceIndex, int toPage) {
        PageGrant grant = prefill.grant;
        Piece piece = grant.session().pieces.get(pieceIndex);
        int fromPage = prefill.nextPage[pieceIndex];
        int firstGrantedPage = grant.firstToken() / geometry.pageTokens();
        LayerWrite write = free.isEmpty() ? grow() : free.removeLast();
        write.prefill = prefill;
        write.layerIndex = piece.layerIndex();
        write.toPage = toPage;
        write.pageCount = toPage - fromPage;
        write.bytes = (long) piece.lengthBytes() * write.pageCount;
        LayerGeometry source = layers.get(piece.layerIndex());
        LayerGeometry target =
                grant.session().peerGeometry.ranks().getFirst().layers().get(piece.targetLayerIndex());
        PagedWrites request = new PagedWrites(
                region,
                new PageList(
                        prefill.pages(),
                        fromPage,
                        write.pageCount,
                        source.pageStrideBytes(),
                        source.offsetBytes() + piece.sourceByteInPage()),
                grant.session().peerRegions.getFirst(),
                new PageList(
                        grant.pages(),
                        fromPage - firstGrantedPage,
                        write.pageCount,
                        target.pageStrideBytes(),
                        target.offsetBytes() + piece.targetByteInPage()),
                piece.lengthBytes(),
                Imm.withWeight(grant.imm(), 1));
        int result = transfer.submit(grant.session().peer, request, write.cookie);
        if (result == TransferEngine.ACCEPTED) {
            prefill.nextPage[pieceIndex] = toPage;
            prefill.writesInFlight++;
        } else {
            recycle(write);
        }
        return result;
    }

    private LayerWrite grow() {
        LayerWrite write = new LayerWrite(writes.size());
        writes.add(write);
        return write;
    }
}
