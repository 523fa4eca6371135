package io.kvmessenger.messenger.pages;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.messenger.port.ContextRow;
import io.kvmessenger.messenger.wire.PeerContextRow;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Where the writes of a grant may land: its pages, in every layer of every rank of the decoder, and its
 * context rows. Pure.
 */
public final class GrantedRanges {
    private GrantedRanges() {}

    /**
     * @param regionsByRank the decoder's regions, by rank and memory
     * @throws IllegalArgumentException when a page is named twice or lies outside the cache
     */
    public static WindowArea of(
            KvGeometry decoder,
            List<List<RegionDescriptor>> regionsByRank,
            int[] pages,
            List<PeerContextRow> context,
            int contextSlot) {
        int[] ascending = pages.clone();
        Arrays.sort(ascending);
        List<WindowArea.Part> parts = new ArrayList<>();
        for (int i = 0; i < decoder.ranks().size(); i++) {
            RankGeometry rank = decoder.ranks().get(i);
            requirePages(decoder.groups().getFirst().pageCount(), ascending);
            for (int memory = 0; pages.length > 0 && memory < rank.memoryCount(); memory++) {
                parts.add(new WindowArea.Part(regionsByRank.get(i).get(memory), ranges(rank, memory, ascending)));
            }
        }
        if (!PeerContextRow.holds(context, contextSlot)) {
            throw new IllegalArgumentException(
                    "context slot " + contextSlot + " with the rows [" + PeerContextRow.describe(context) + "]");
        }
        if (contextSlot != ContextRow.NO_SLOT) {
            context.forEach(row -> parts.add(row.part(contextSlot)));
        }
        return WindowArea.of(parts);
    }

    private static void requirePages(int pageCount, int[] ascending) {
        if (ascending.length > 0 && (ascending[0] < 0 || ascending[ascending.length - 1] >= pageCount)) {
            int page = ascending[0] < 0 ? ascending[0] : ascending[ascending.length - 1];
            throw new IllegalArgumentException("page " + page + " of " + pageCount);
        }
    }

    private static WindowRanges ranges(RankGeometry rank, int memory, int[] pages) {
        List<LayerGeometry> layers = rank.layers().stream()
                .filter(layer -> layer.memoryIndex() == memory)
                .toList();
        return WindowRanges.ofPages(
                pages,
                layers.stream().mapToLong(LayerGeometry::offsetBytes).toArray(),
                layers.stream().mapToLong(LayerGeometry::pageStrideBytes).toArray(),
                layers.stream().mapToLong(LayerGeometry::pageBytes).toArray());
    }
}
