package io.kvmessenger.kvlayout;

import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Carries plans out on a request's pages, byte by byte, and holds every byte of the target to account: what belongs to
 * the request's tokens is written once, with what belongs there, from the request's pages alone; nothing else is written
 * but what fills a page up.
 */
final class CarriedOut {
    private static final int UNTOUCHED = -1;
    /** Tokens in the request's last page, behind its last token. */
    private static final int FILLING = -2;

    private final KvGeometry target;
    private final int firstToken;
    private final int tokenCount;
    /** By target rank, then by byte of the rank's memory: the content that arrived. */
    private final int[][] memories;

    private final long[] pieceCounts;

    private CarriedOut(KvGeometry target, int firstToken, int tokenCount) {
        this.target = target;
        this.firstToken = firstToken;
        this.tokenCount = tokenCount;
        this.pieceCounts = new long[target.ranks().size()];
        this.memories = new int[target.ranks().size()][];
        for (int r = 0; r < memories.length; r++) {
            memories[r] = new int[(int) target.spanBytes(r, 0)];
            Arrays.fill(memories[r], UNTOUCHED);
        }
    }

    /** One source messenger serves all ranks. */
    static void check(KvGeometry source, KvGeometry target, int firstToken, int tokenCount) {
        check(List.of(source), target, SourceDraw.TWINS, firstToken, tokenCount);
    }

    /** Several source messengers, each with some of the ranks, send by one draw. */
    static void check(List<KvGeometry> sources, KvGeometry target, SourceDraw draw, int firstToken, int tokenCount) {
        CarriedOut carried = new CarriedOut(target, firstToken, tokenCount);
        for (KvGeometry source : sources) {
            TransferPlan plan = LayoutPlanner.plan(source, target, draw);
            plan.pieces().forEach(piece -> carried.carry(source, piece));
        }
        carried.checkEveryByte();
        for (int r = 0; r < target.ranks().size(); r++) {
            long expected = ExpectedWrites.pieceCount(sources.getFirst(), target, r, firstToken, tokenCount);
            int targetRankIndex = r;
            long fromAll = sources.stream()
                    .mapToLong(source -> ExpectedWrites.pieceCountFrom(
                            source, target, targetRankIndex, firstToken, tokenCount, draw))
                    .sum();
            if (expected != carried.pieceCounts[r] || fromAll != expected) {
                throw new AssertionError("rank " + r + " of " + target + " expects " + expected + " pieces and gets "
                        + carried.pieceCounts[r] + " from " + sources);
            }
        }
    }

    /**
     * Any pages, but not in order, and others in each group: page k of a request is the engine's page 7k + 4 of the first
     * group, modulo their prime count.
     */
    static int[] pages(KvGeometry side, int group, int firstToken, int tokenCount) {
        int pageTokens = side.groups().get(group).pageTokens();
        return IntStream.range(firstToken / pageTokens, Math.ceilDiv(tokenCount, pageTokens))
                .map(k -> (7 * k + 4 + 3 * group) % Shapes.PAGE_COUNT)
                .toArray();
    }

    /** Where the first page of the target begins that holds a token which is asked for and which the last one attends to. */
    private int firstTokenOf(int groupIndex) {
        KvGroup group = target.groups().get(groupIndex);
        int first = firstToken;
        while (IntStream.range(first, Math.min(tokenCount, first + group.pageTokens()))
                .noneMatch(token -> isAttendedTo(token, group.kind()))) {
            first += group.pageTokens();
        }
        return first;
    }

    /** By the last token. */
    private boolean isAttendedTo(int token, GroupKind kind) {
        int last = tokenCount - 1;
        return switch (kind) {
            case GroupKind.FullAttention _, GroupKind.State _ -> true;
            case GroupKind.SlidingWindow(int windowTokens) -> last - token < windowTokens;
            case GroupKind.ChunkedLocal(int chunkTokens) -> token / chunkTokens == last / chunkTokens;
        };
    }

    private void carry(KvGeometry source, Piece piece) {
        RankGeometry from = source.ranks().get(piece.sourceRankIndex());
        RankGeometry to = target.ranks().get(piece.targetRankIndex());
        LayerGeometry fromLayer = from.layers().get(piece.layerIndex());
        LayerGeometry toLayer = to.layers().get(piece.targetLayerIndex());
        int[] sourcePages = pages(source, piece.groupIndex(), 0, tokenCount);
        int first = firstTokenOf(piece.groupIndex());
        int[] targetPages = pages(target, piece.groupIndex(), first, tokenCount);
        for (int part = piece.partIndex(first); part < piece.partCount(tokenCount); part++) {
            int targetPart = part - piece.partIndex(first);
            int sourcePage = sourcePages[part / piece.source().countPerPage()];
            int targetPage = targetPages[targetPart / piece.target().countPerPage()];
            int sourceByte = byteInPage(piece.source(), part);
            int targetByte = byteInPage(piece.target(), targetPart);
            require(sourcePage >= 0 && sourcePage < source.groupOf(fromLayer).pageCount(), "source page", piece);
            require(sourceByte >= 0 && sourceByte + piece.lengthBytes() <= fromLayer.pageBytes(), "source byte", piece);
            require(targetByte >= 0 && targetByte + piece.lengthBytes() <= toLayer.pageBytes(), "target byte", piece);
            int logicalPage = part / piece.source().countPerPage();
            for (int i = 0; i < piece.lengthBytes(); i++) {
                int at = (int) toLayer.pageOffsetBytes(targetPage) + targetByte + i;
                require(memories[piece.targetRankIndex()][at] == UNTOUCHED, "byte written twice", piece);
                memories[piece.targetRankIndex()][at] =
                        content(source, from, fromLayer, logicalPage, sourceByte + i, tokenCount);
            }
            pieceCounts[piece.targetRankIndex()]++;
        }
    }

    private void requirePageCount(LayerGeometry layer, int count) {
        int granted = target.groupOf(layer).pagesFor(firstToken, tokenCount);
        if (granted != count) {
            throw new AssertionError(granted + " pages are granted of " + layer + ", expected " + count);
        }
    }

    private static void require(boolean holds, String what, Piece piece) {
        if (!holds) {
            throw new AssertionError(what + " of " + piece);
        }
    }

    private static int byteInPage(PageParts parts, int part) {
        return parts.byteInPage() + part % parts.countPerPage() * parts.strideBytes();
    }

    private void checkEveryByte() {
        for (int r = 0; r < memories.length; r++) {
            RankGeometry rank = target.ranks().get(r);
            int[] memory = memories[r].clone();
            for (LayerGeometry layer : rank.layers()) {
                int first = firstTokenOf(layer.groupIndex());
                int[] pages = pages(target, layer.groupIndex(), first, tokenCount);
                requirePageCount(layer, pages.length);
                for (int k = 0; k < pages.length; k++) {
                    int logicalPage = first / target.groupOf(layer).pageTokens() + k;
                    for (int i = 0; i < layer.pageBytes(); i++) {
                        int at = (int) layer.pageOffsetBytes(pages[k]) + i;
                        int expected = content(target, rank, layer, logicalPage, i, tokenCount);
                        if (memory[at] != expected && expected != FILLING) {
                            throw new AssertionError(layer + " page " + logicalPage + " byte " + i + " of rank " + r
                                    + " of " + target + " holds " + memory[at] + ", expected " + expected);
                        }
                        memory[at] = UNTOUCHED;
                    }
                }
            }
            if (Arrays.stream(memory).anyMatch(content -> content != UNTOUCHED)) {
                throw new AssertionError("bytes outside the request were written in rank " + r + " of " + target);
            }
        }
    }

    /** What a byte of a request's page holds: tells every (layer, head, token, byte of the row) apart. */
    private static int content(
            KvGeometry side, RankGeometry rank, LayerGeometry layer, int logicalPage, int byteInPage, int tokenCount) {
        int layerNumber = Integer.parseInt(layer.name().substring("layers.".length()));
        int rowBytes = layerNumber + 1;
        HeadRange heads = side.headsOf(rank, layer.groupIndex());
        int pageTokens = side.groupOf(layer).pageTokens();
        int row = byteInPage / rowBytes;
        boolean headsFirst = side.groupOf(layer).layout().equals(PageLayout.HND);
        int head = heads.from() + (headsFirst ? row / pageTokens : row % heads.count());
        int tokenInPage = headsFirst ? row % pageTokens : row / heads.count();
        int token = logicalPage * pageTokens + tokenInPage;
        int content = ((layerNumber * 64 + head) * 256 + token) * 16 + byteInPage % rowBytes;
        return token < tokenCount ? content : FILLING;
    }
}
