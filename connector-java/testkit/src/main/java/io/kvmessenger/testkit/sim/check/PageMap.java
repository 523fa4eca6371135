package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
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
}
