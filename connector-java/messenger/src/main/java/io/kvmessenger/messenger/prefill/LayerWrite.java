package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.pages.PageSum;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;

/** A submitted write of one piece of some pages of one layer, until its completion. Pooled: one object a write in flight. */
final class LayerWrite {
    final int cookie;
    Delivery delivery;
    /** The first piece, by index into {@link Delivery#routes}. */
    int routeIndex;
    /** Pieces that left as one: the first and its continuations; 0 when it is a context row. */
    int joinedCount;
    /** Pages {@code [.., toPage)} of the layer have left when this write has. */
    int toPage;

    /** Pages, of one layer each. */
    int pageCount;
    /** Runs of heads of single tokens. */
    int stridedPieceCount;

    long bytes;
    /** What was submitted. */
    PagedWrites request;
    /** Of the source's pages, for a decoder that compares; null otherwise. */
    PageSum sum;

    /** The way of the first piece; none where it is a context row. */
    PieceRoute firstRoute() {
        return delivery.routes.get(routeIndex);
    }

    /** Where the last of its pages ends in the prompt; none where it is a context row. */
    int toToken() {
        return toPage * delivery.prefill.pages.get(firstRoute().groupIndex()).pageTokens();
    }

    LayerWrite(int cookie) {
        this.cookie = cookie;
    }
}
