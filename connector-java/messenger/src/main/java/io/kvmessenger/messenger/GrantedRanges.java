package io.kvmessenger.messenger;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.transfer.WindowRanges;
import java.util.List;

/** The byte ranges that a grant covers: its pages, in every layer of the decoder's rank. Pure. */
final class GrantedRanges {
    private GrantedRanges() {}

    /** @throws IllegalArgumentException when a page is named twice or lies outside the cache */
    static WindowRanges of(KvGeometry decoder, int[] pages) {
        List<LayerGeometry> layers = decoder.ranks().getFirst().layers();
        int pageCount = decoder.ranks().getFirst().pageCount();
        long[] offsets = new long[pages.length * layers.size()];
        long[] lengths = new long[offsets.length];
        int at = 0;
        for (LayerGeometry layer : layers) {
            for (int page : pages) {
                if (page >= pageCount) {
                    throw new IllegalArgumentException("page " + page + " of " + pageCount);
                }
                offsets[at] = layer.offsetBytes() + page * layer.pageStrideBytes();
                lengths[at++] = layer.pageBytes();
            }
        }
        return WindowRanges.of(offsets, lengths);
    }
}
