package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import java.util.ArrayList;
import java.util.List;

/** Finds the page of a layer at an offset, by looking at every layer: slow, and obviously right. */
final class PageMap {
    /** A page of a layer. */
    record Place(int layerIndex, int page) {}

    private final KvGeometry geometry;

    PageMap(KvGeometry geometry) {
        this.geometry = geometry;
    }

    KvGeometry geometry() {
        return geometry;
    }

    List<LayerGeometry> layers() {
        return geometry.ranks().getFirst().layers();
    }

    int pageTokens() {
        return geometry.pageTokens();
    }

    /** The one page that holds the whole range, or null. */
    Place find(long offset, int lengthBytes) {
        List<LayerGeometry> layers = layers();
        int pageCount = geometry.ranks().getFirst().pageCount();
        for (int layer = 0; layer < layers.size(); layer++) {
            LayerGeometry at = layers.get(layer);
            for (int page = 0; page < pageCount; page++) {
                long from = at.pageOffsetBytes(page);
                if (offset >= from && offset + lengthBytes <= from + at.pageBytes()) {
                    return new Place(layer, page);
                }
            }
        }
        return null;
    }

    /** The pages that a range lies in: one, or several that follow each other; empty when a byte of it is in none. */
    List<Place> cover(long offset, int lengthBytes) {
        List<Place> places = new ArrayList<>();
        long at = offset;
        while (at < offset + lengthBytes) {
            Place place = find(at, 1);
            if (place == null) {
                return List.of();
            }
            places.add(place);
            LayerGeometry layer = layers().get(place.layerIndex());
            at = layer.pageOffsetBytes(place.page()) + layer.pageBytes();
        }
        return places;
    }
}
