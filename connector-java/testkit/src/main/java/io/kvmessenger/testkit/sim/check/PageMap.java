package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.testkit.sim.ContextPool;
import java.util.ArrayList;
import java.util.List;

/** Finds the page of a layer at an offset by searching every layer: slow, and obviously correct. */
final class PageMap {
    /** Instead of a group: the page is a slot of context rows, whose kinds are numbered after the ranks. */
    static final int CONTEXT = -1;

    /** Bytes {@code [fromByte, toByte)} of a page of a layer of a rank. */
    record Place(int rankIndex, int layerIndex, int groupIndex, int page, int fromByte, int toByte) {}

    private final KvGeometry geometry;

    PageMap(KvGeometry geometry) {
        this.geometry = geometry;
    }

    KvGeometry geometry() {
        return geometry;
    }

    /** Number of layers of all ranks. */
    int layerCount() {
        return geometry.ranks().stream().mapToInt(rank -> rank.layers().size()).sum();
    }

    /** The pages that a range covers: one, or several adjacent ones; empty when a byte of it is in none. */
    List<Place> cover(int rankIndex, long offset, int lengthBytes) {
        List<Place> places = new ArrayList<>();
        long at = offset;
        while (at < offset + lengthBytes) {
            Place place = find(rankIndex, at, offset + lengthBytes);
            if (place == null) {
                return List.of();
            }
            places.add(place);
            at += place.toByte - place.fromByte;
        }
        return places;
    }

    /** The part of the range in the page of its first byte; null if no page contains that byte. */
    private Place find(int rankIndex, long offset, long endOffset) {
        if (rankIndex >= geometry.ranks().size()) {
            return findRow(rankIndex, offset, endOffset);
        }
        List<LayerGeometry> layers = geometry.ranks().get(rankIndex).layers();
        for (int layerIndex = 0; layerIndex < layers.size(); layerIndex++) {
            LayerGeometry layer = layers.get(layerIndex);
            for (int page = 0; page < geometry.groupOf(layer).pageCount(); page++) {
                long from = layer.pageOffsetBytes(page);
                if (offset >= from && offset < from + layer.pageBytes()) {
                    int endByte = (int) Math.min(layer.pageBytes(), endOffset - from);
                    int listed = page * geometry.groupOf(layer).pageShares()
                            + KvGeometry.shareOf(geometry.ranks().get(rankIndex), geometry.groupOf(layer));
                    return new Place(rankIndex, layerIndex, layer.groupIndex(), listed, (int) (offset - from), endByte);
                }
            }
        }
        return null;
    }

    private Place findRow(int rankIndex, long offset, long endOffset) {
        int slot = ContextPool.slotOf(offset);
        int from = (int) offset - ContextPool.offsetOf(slot);
        int to = (int) endOffset - ContextPool.offsetOf(slot);
        int rowBytes = ContextPool.rowBytes(rankIndex - geometry.ranks().size());
        return to <= rowBytes ? new Place(rankIndex, 0, CONTEXT, slot, from, to) : null;
    }
}
