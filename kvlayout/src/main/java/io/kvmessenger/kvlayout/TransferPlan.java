package io.kvmessenger.kvlayout;

import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

/**
 * The pieces of one page of every layer, ordered by the source's layers because those are released one by one, and
 * which of them are adjacent, so that layers released together can travel as one write.
 *
 * <p>Immutable; safe from any thread. It contains no page indices, so one plan serves all requests between two peers
 * with the same selection of replicas.
 */
public final class TransferPlan {
    /** Result of {@link #continuation} for a piece without a continuation. */
    public static final int NONE = -1;

    private final int layerCount;
    private final List<Piece> pieces;
    private final int[] continuations;

    TransferPlan(KvGeometry source, KvGeometry target, List<Piece> pieces) {
        this.layerCount = source.ranks().stream()
                .mapToInt(rank -> rank.layers().size())
                .max()
                .orElseThrow();
        this.pieces = pieces.stream()
                .sorted(Comparator.comparingInt(Piece::layerIndex))
                .toList();
        this.continuations = continuations(source, target, this.pieces);
    }

    /** Largest number of layers of a source rank. */
    public int layerCount() {
        return layerCount;
    }

    public int pieceCount() {
        return pieces.size();
    }

    public Piece piece(int pieceIndex) {
        return pieces.get(pieceIndex);
    }

    public Stream<Piece> pieces() {
        return pieces.stream();
    }

    /**
     * The pieces that may be sent once the source rank's layer of that index is readable. With PP each stage counts its
     * own layers: filter by {@link Piece#sourceRankIndex}.
     */
    public List<Piece> piecesOfLayer(int layerIndex) {
        return pieces.stream().filter(piece -> piece.layerIndex() == layerIndex).toList();
    }

    /**
     * The piece of the same group that begins, in every page of both sides, where this one ends, so that both are one
     * run of bytes. {@link #NONE} when there is none.
     */
    public int continuation(int pieceIndex) {
        return continuations[pieceIndex];
    }

    /** The start of a piece, or the position after its end, as a map key. */
    private record Start(
            int sourceRankIndex,
            int targetRankIndex,
            int groupIndex,
            int partTokens,
            int sourceMemoryIndex,
            long sourceStrideBytes,
            long sourceByte,
            int targetMemoryIndex,
            long targetStrideBytes,
            long targetByte) {
        static Start of(KvGeometry source, KvGeometry target, Piece piece, int bytesLater) {
            LayerGeometry from =
                    source.ranks().get(piece.sourceRankIndex()).layers().get(piece.layerIndex());
            LayerGeometry to =
                    target.ranks().get(piece.targetRankIndex()).layers().get(piece.targetLayerIndex());
            return new Start(
                    piece.sourceRankIndex(),
                    piece.targetRankIndex(),
                    piece.groupIndex(),
                    piece.partTokens(),
                    from.memoryIndex(),
                    from.pageStrideBytes(),
                    from.offsetBytes() + piece.source().byteInPage() + bytesLater,
                    to.memoryIndex(),
                    to.pageStrideBytes(),
                    to.offsetBytes() + piece.target().byteInPage() + bytesLater);
        }
    }

    private static int[] continuations(KvGeometry source, KvGeometry target, List<Piece> pieces) {
        Map<Start, Integer> byStart = new HashMap<>();
        for (int i = 0; i < pieces.size(); i++) {
            if (takesPagesWhole(pieces.get(i))) {
                byStart.put(Start.of(source, target, pieces.get(i), 0), i);
            }
        }
        int[] continuations = new int[pieces.size()];
        Arrays.setAll(continuations, i -> {
            Piece piece = pieces.get(i);
            return takesPagesWhole(piece)
                    ? byStart.getOrDefault(Start.of(source, target, piece, piece.lengthBytes()), NONE)
                    : NONE;
        });
        return continuations;
    }

    /** Only such pieces have continuations: of a page's parts, at most the last could touch the next layer's. */
    private static boolean takesPagesWhole(Piece piece) {
        return piece.source().countPerPage() == 1 && piece.target().countPerPage() == 1;
    }
}
