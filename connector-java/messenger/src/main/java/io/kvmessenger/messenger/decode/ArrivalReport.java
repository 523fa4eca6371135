package io.kvmessenger.messenger.decode;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.FetchTimeline;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.Tally;

/**
 * Reports a fetch that has arrived to the engine and the figures. Owned by the messenger's thread; it decides nothing.
 */
final class ArrivalReport {
    private final KvGeometry geometry;
    private final EngineEvents engine;
    private final Tally tally;
    private final NanoClock clock;

    ArrivalReport(KvGeometry geometry, EngineEvents engine, Tally tally, NanoClock clock) {
        this.geometry = geometry;
        this.engine = engine;
        this.tally = tally;
        this.clock = clock;
    }

    void arrived(Fetch fetch) {
        long nowNs = clock.nowNs();
        int pages = fetch.ask.pages().length;
        long bytes = bytesOf(pages);
        tally.add(MessengerMetric.FETCHES_ARRIVED, 1);
        tally.add(MessengerMetric.PAGES_RECEIVED, (long) pages * layerCount());
        tally.add(MessengerMetric.BYTES_RECEIVED, bytes);
        tally.observe(MessengerMetric.FETCH_SECONDS, (nowNs - fetch.askedNs) / 1e9);
        engine.arrived(fetch.ask.request(), pages);
        engine.timeline(new FetchTimeline(
                fetch.ask.request(),
                fetch.ask.transferId(),
                pages,
                bytes,
                fetch.askedNs,
                fetch.grantedNs,
                nowNs,
                fetch.prefillerNames()));
    }

    private long bytesOf(int pageCount) {
        long bytes = 0;
        for (RankGeometry rank : geometry.ranks()) {
            for (LayerGeometry layer : rank.layers()) {
                bytes += (long) layer.pageBytes() * pageCount;
            }
        }
        return bytes;
    }

    /** Layers of all ranks together. */
    private int layerCount() {
        return geometry.ranks().stream().mapToInt(rank -> rank.layers().size()).sum();
    }
}
