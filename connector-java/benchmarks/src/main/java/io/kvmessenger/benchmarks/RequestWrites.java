package io.kvmessenger.benchmarks;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageParts;
import io.kvmessenger.kvlayout.Piece;
import io.kvmessenger.kvlayout.TransferPlan;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PageList;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;

/**
 * Divides requests between two peers into writes, as a prefiller does when everything is released at once, and counts
 * them.
 *
 * <p>Immutable; safe from any thread. It submits nothing.
 */
final class RequestWrites {
    /** Pieces that are adjacent in every page, as one. */
    private record Route(
            Piece first,
            int pieceCount,
            int lengthBytes,
            long sourceStrideBytes,
            long sourceOffsetBytes,
            long targetStrideBytes,
            long targetOffsetBytes) {}

    private final List<Route> routes = new ArrayList<>();

    RequestWrites(KvGeometry source, KvGeometry target, TransferPlan plan) {
        BitSet continued = new BitSet();
        for (int i = 0; i < plan.pieceCount(); i++) {
            if (plan.continuation(i) != TransferPlan.NONE) {
                continued.set(plan.continuation(i));
            }
        }
        for (int i = continued.nextClearBit(0); i < plan.pieceCount(); i = continued.nextClearBit(i + 1)) {
            routes.add(route(source, target, plan, i));
        }
    }

    private static Route route(KvGeometry source, KvGeometry target, TransferPlan plan, int pieceIndex) {
        Piece piece = plan.piece(pieceIndex);
        int lengthBytes = 0;
        int pieceCount = 0;
        for (int i = pieceIndex; i != TransferPlan.NONE; i = plan.continuation(i)) {
            lengthBytes += plan.piece(i).lengthBytes();
            pieceCount++;
        }
        LayerGeometry from =
                source.ranks().get(piece.sourceRankIndex()).layers().get(piece.layerIndex());
        LayerGeometry to = target.ranks().get(piece.targetRankIndex()).layers().get(piece.targetLayerIndex());
        return new Route(
                piece,
                pieceCount,
                lengthBytes,
                from.pageStrideBytes(),
                from.offsetBytes() + piece.source().byteInPage(),
                to.pageStrideBytes(),
                to.offsetBytes() + piece.target().byteInPage());
    }

    /** Number of writes for the first {@code tokenCount} tokens of a request with these pages. */
    long count(int[] sourcePages, int[] targetPages, int tokenCount) {
        long writes = 0;
        for (int r = 0; r < routes.size(); r++) {
            Route route = routes.get(r);
            Piece piece = route.first;
            int partCount = piece.partCount(tokenCount);
            PageList from =
                    list(sourcePages, partCount, route.sourceStrideBytes, route.sourceOffsetBytes, piece.source());
            PageList to =
                    list(targetPages, partCount, route.targetStrideBytes, route.targetOffsetBytes, piece.target());
            int partsPerWriteMax = TransferRequest.WEIGHT_MAX / route.pieceCount;
            for (int part = 0; part < partCount; writes++) {
                part += PageList.runLength(from, to, route.lengthBytes, part, partsPerWriteMax);
            }
        }
        return writes;
    }

    private static PageList list(int[] pages, int partCount, long strideBytes, long offsetBytes, PageParts parts) {
        return new PageList(pages, 0, partCount, strideBytes, offsetBytes, parts.countPerPage(), parts.strideBytes());
    }
}
