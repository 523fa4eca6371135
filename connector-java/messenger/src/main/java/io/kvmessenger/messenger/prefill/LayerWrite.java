package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.pages.PageSum;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;

/** A submitted write of joined pieces of some pages, until its completion. Pooled: one object per write in flight. */
final class LayerWrite {
    final int cookie;
    Delivery delivery;
    /** The first piece, by index into {@link Delivery#routes}. */
    int routeIndex;
    /** Pieces submitted as one: the first and its continuations; 0 for context rows. */
    int joinedCount;
    /** With this write, pages {@code [.., toPage)} of the layer have left. */
    int toPage;

    /** Number of pages, counted per layer. */
    int pageCount;
    /** Number of strided pieces: runs of heads of single tokens. */
    int stridedPieceCount;

    long bytes;
    PagedWrites request;
    /** The sum over the source's pages, if the decoder compares them; null otherwise. */
    PageSum sum;

    /** The route of the first piece; undefined for context rows. */
    PieceRoute firstRoute() {
        return delivery.routes.get(routeIndex);
    }

    /** End of its last page in the prompt, in tokens; undefined for context rows. */
    int toToken() {
        return toPage * delivery.prefill.pages.get(firstRoute().groupIndex()).pageTokens();
    }

    LayerWrite(int cookie) {
        this.cookie = cookie;
    }
}
