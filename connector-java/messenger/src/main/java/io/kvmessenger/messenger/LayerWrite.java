package io.kvmessenger.messenger;

/** A submitted write of one piece of some pages of one layer, until its completion. Pooled: one object a write in flight. */
final class LayerWrite {
    static final int CONTEXT = -1;

    final int cookie;
    Prefill prefill;
    /** Of pages; {@link #CONTEXT} when it is a context row. */
    int layerOrdinal;
    /** Pages {@code [.., toPage)} of the layer have left when this write has. */
    int toPage;

    int pageCount;
    long bytes;

    LayerWrite(int cookie) {
        this.cookie = cookie;
    }
}
