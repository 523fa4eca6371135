package io.kvmessenger.messenger.pages;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;

/**
 * Computes where the writes of a grant may land: its pages in every layer of every rank of the decoder, and its context
 * rows. Pure.
 */
public final class GrantedRanges {
    private GrantedRanges() {}

    /**
     * @param regionsByRank the decoder's regions, by rank and memory
     * @param pages by group
     * @param rows of its context
     * @throws IllegalArgumentException when a page is named twice or lies outside the cache
     */
    public static WindowArea of(
            KvGeometry decoder,
            List<List<RegionDescriptor>> regionsByRank,
            List<int[]> pages,
            List<WindowArea.Part> rows) {
        String outside = PageLists.outside(decoder, pages);
        if (!outside.isEmpty()) {
            throw new IllegalArgumentException(outside);
        }
        List<int[]> ascending = pages.stream().map(GrantedRanges::sorted).toList();
        List<WindowArea.Part> parts = new ArrayList<>();
        for (int i = 0; i < decoder.ranks().size(); i++) {
            RankGeometry rank = decoder.ranks().get(i);
            for (int memory = 0; memory < rank.memoryCount(); memory++) {
                WindowRanges ranges = ranges(rank, memory, ascending);
                if (ranges.endBytes() > 0) {
                    parts.add(new WindowArea.Part(regionsByRank.get(i).get(memory), ranges));
                }
            }
        }
        parts.addAll(rows);
        return WindowArea.of(parts);
    }

    private static int[] sorted(int[] pages) {
        int[] ascending = pages.clone();
        Arrays.sort(ascending);
        return ascending;
    }

    private static WindowRanges ranges(RankGeometry rank, int memory, List<int[]> pages) {
        List<WindowRanges> byGroup = new ArrayList<>();
        for (int group = 0; group < pages.size(); group++) {
            List<LayerGeometry> layers = layersOf(rank, memory, group);
            if (!layers.isEmpty() && pages.get(group).length > 0) {
                byGroup.add(WindowRanges.ofPages(
                        pages.get(group),
                        layers.stream().mapToLong(LayerGeometry::offsetBytes).toArray(),
                        layers.stream()
                                .mapToLong(LayerGeometry::pageStrideBytes)
                                .toArray(),
                        layers.stream().mapToLong(LayerGeometry::pageBytes).toArray()));
            }
        }
        return byGroup.size() > 1 && !apart(byGroup) ? spelledOut(rank, memory, pages) : WindowRanges.union(byGroup);
    }

    /** Whether the byte spans of the groups are disjoint, from first to last byte: then no two groups share a page. */
    private static boolean apart(List<WindowRanges> byGroup) {
        List<WindowRanges> inOrder = byGroup.stream()
                .sorted(Comparator.comparingLong(WindowRanges::beginBytes))
                .toList();
        for (int i = 1; i < inOrder.size(); i++) {
            if (inOrder.get(i).beginBytes() < inOrder.get(i - 1).endBytes()) {
                return false;
            }
        }
        return true;
    }

    /** Lists each page of each layer. Groups that draw their pages from one pool must not name the same page. */
    private static WindowRanges spelledOut(RankGeometry rank, int memory, List<int[]> pages) {
        List<LayerGeometry> layers = rank.layers().stream()
                .filter(layer -> layer.memoryIndex() == memory)
                .toList();
        int count = layers.stream()
                .mapToInt(layer -> pages.get(layer.groupIndex()).length)
                .sum();
        long[] offsets = new long[count];
        long[] lengths = new long[count];
        int at = 0;
        for (LayerGeometry layer : layers) {
            for (int page : pages.get(layer.groupIndex())) {
                offsets[at] = layer.pageOffsetBytes(page);
                lengths[at++] = layer.pageBytes();
            }
        }
        return WindowRanges.of(offsets, lengths);
    }

    private static List<LayerGeometry> layersOf(RankGeometry rank, int memory, int group) {
        return rank.layers().stream()
                .filter(layer -> layer.memoryIndex() == memory && layer.groupIndex() == group)
                .toList();
    }
}
