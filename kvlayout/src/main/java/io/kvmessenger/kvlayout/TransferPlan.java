package io.kvmessenger.kvlayout;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;

/**
 * The pieces of one page of every layer, grouped by the source's layers because those are released one by one.
 *
 * <p>Immutable; safe from any thread. It knows no page indices, so one plan serves all requests between two peers.
 */
public final class TransferPlan {
    private final List<List<Piece>> piecesByLayer;

    TransferPlan(int layerCount, List<Piece> pieces) {
        List<List<Piece>> byLayer = new ArrayList<>();
        for (int i = 0; i < layerCount; i++) {
            byLayer.add(new ArrayList<>());
        }
        pieces.forEach(piece -> byLayer.get(piece.layerIndex()).add(piece));
        piecesByLayer = byLayer.stream().map(List::copyOf).toList();
    }

    /** The most layers that a source rank has. */
    public int layerCount() {
        return piecesByLayer.size();
    }

    /**
     * What may go once the source rank's layer of that index is readable. With PP each stage counts its own layers:
     * choose by {@link Piece#sourceRankIndex}.
     */
    public List<Piece> piecesOfLayer(int layerIndex) {
        return piecesByLayer.get(layerIndex);
    }

    public Stream<Piece> pieces() {
        return piecesByLayer.stream().flatMap(List::stream);
    }
}
