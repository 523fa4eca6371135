package io.kvmessenger.messenger.prefill;

import io.kvmessenger.kvlayout.Piece;
import java.util.BitSet;

/**
 * The parts that one write takes from a prompt's pages to the granted ones: {@code count} of each list, from a position
 * on. A value. The lists do not change while a write reads them.
 *
 * @param pageCount number of the prompt's pages, counted per layer
 */
record SentParts(int[] source, int sourceFrom, int[] target, int targetFrom, int count, int pageCount) {
    /** All parts of the pages {@code [fromPage, toPage)} that the grant asks for. */
    static SentParts all(PieceRoute route, PromptPages pages, PageGrant grant, int fromPage, int toPage) {
        Piece piece = route.piece();
        int firstGranted = grant.firstTokenOf(route.groupIndex());
        int first = piece.partIndex(Math.max(firstGranted, fromPage * pages.pageTokens()));
        int count = piece.partCount(Math.min(grant.promptTokens(), toPage * pages.pageTokens())) - first;
        return new SentParts(
                pages.byPosition(),
                first,
                grant.pages().get(route.groupIndex()),
                first - piece.partIndex(firstGranted),
                count,
                toPage - fromPage);
    }

    /** Those of these pages that are on the rank of the share; both sides' pages hold the same tokens. */
    static SentParts ofShare(
            PieceRoute route, PromptPages pages, int share, PageGrant grant, int fromPage, int toPage) {
        BitSet own = pages.positionsOf(share, fromPage, toPage);
        int[] granted = grant.pages().get(route.groupIndex());
        int firstGranted = grant.firstTokenOf(route.groupIndex()) / pages.pageTokens();
        int[] source = new int[own.cardinality()];
        int[] target = new int[source.length];
        int count = 0;
        for (int at = own.nextSetBit(0); at >= 0; at = own.nextSetBit(at + 1)) {
            source[count] = pages.ownPage(fromPage + at);
            target[count++] = granted[fromPage + at - firstGranted];
        }
        return new SentParts(source, 0, target, 0, count, count);
    }
}
