package io.kvmessenger.messenger;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.LayoutPlanner;
import io.kvmessenger.kvlayout.Piece;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.util.ArrayList;
import java.util.Comparator;
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
    private final List<RankMemory> memory;
    private final LayerOrder order;
    private final TransferEngine transfer;
    private final List<LayerWrite> writes = new ArrayList<>();
    private final List<LayerWrite> free = new ArrayList<>();

    /** @param memory of each rank of the geometry */
    LayerWriter(KvGeometry geometry, List<RankMemory> memory, TransferEngine transfer) {
        this.geometry = geometry;
        this.memory = memory;
        this.order = new LayerOrder(geometry);
        this.transfer = transfer;
    }

    int layerCount() {
        return order.layerCount();
    }

    int pageCount(int tokens) {
        return Math.ceilDiv(tokens, geometry.pageTokens());
    }

    int inFlightCount() {
        return writes.size() - free.size();
    }

    /** The ways of a page's pieces to a decoder, in the order in which its layers become readable. */
    List<PieceRoute> routesTo(KvGeometry peer, List<List<RegionDescriptor>> peerRegions) {
        return LayoutPlanner.plan(geometry, peer)
                .pieces()
                .map(piece -> route(piece, peer, peerRegions))
                .sorted(Comparator.comparingInt(PieceRoute::layerOrdinal))
                .toList();
    }

    private PieceRoute route(Piece piece, KvGeometry peer, List<List<RegionDescriptor>> peerRegions) {
        LayerGeometry source =
                geometry.ranks().get(piece.sourceRankIndex()).layers().get(piece.layerIndex());
        LayerGeometry target =
                peer.ranks().get(piece.targetRankIndex()).layers().get(piece.targetLayerIndex());
        return PieceRoute.of(
                piece,
                order.ordinalOf(piece.sourceRankIndex(), piece.layerIndex()),
                memory.get(piece.sourceRankIndex()).regions().get(source.memoryIndex()),
                source,
                peerRegions.get(piece.targetRankIndex()).get(target.memoryIndex()),
                target);
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
        int peerPages = grant.session().peerGeometry.ranks().stream()
                .mapToInt(RankGeometry::pageCount)
                .min()
                .orElseThrow();
        for (int page : grant.pages()) {
            if (page < 0 || page >= peerPages) {
                return "the grant of transfer " + grant.transferId() + " names page " + page + " of " + peerPages;
            }
        }
        return "";
    }

    /** Tells the transfer engine where the grant lets us write: exactly the granted pages, on every rank. */
    void allow(PageGrant grant) {
        Session session = grant.session();
        if (session.peer != null) {
            transfer.allow(
                    session.peer,
                    grant.imm(),
                    GrantedRanges.of(session.peerGeometry, session.peerRegions, grant.pages()));
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
        PieceRoute route = grant.session().routes.get(pieceIndex);
        int fromPage = prefill.nextPage[pieceIndex];
        int firstGrantedPage = grant.firstToken() / geometry.pageTokens();
        LayerWrite write = free.isEmpty() ? grow() : free.removeLast();
        write.prefill = prefill;
        write.layerOrdinal = route.layerOrdinal();
        write.toPage = toPage;
        write.pageCount = toPage - fromPage;
        write.bytes = (long) route.lengthBytes() * write.pageCount;
        PagedWrites request = new PagedWrites(
                route.source(),
                new PageList(
                        prefill.pages(),
                        fromPage,
                        write.pageCount,
                        route.sourceStrideBytes(),
                        route.sourceOffsetBytes()),
                route.target(),
                new PageList(
                        grant.pages(),
                        fromPage - firstGrantedPage,
                        write.pageCount,
                        route.targetStrideBytes(),
                        route.targetOffsetBytes()),
                route.lengthBytes(),
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
