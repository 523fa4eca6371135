package io.kvmessenger.messenger.decode;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.FetchTimeline;
import io.kvmessenger.messenger.port.History;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.Tally;
import java.util.List;

/**
 * Reports an arrived fetch to the engine and to the metrics. Owned by the messenger's thread. It does not decide
 * whether a fetch has arrived.
 */
final class ArrivalReport {
    private final KvGeometry geometry;
    private final EngineEvents engine;
    private final Tally tally;
    private final History history;
    private final NanoClock clock;

    ArrivalReport(KvGeometry geometry, EngineEvents engine, Tally tally, History history, NanoClock clock) {
        this.geometry = geometry;
        this.engine = engine;
        this.tally = tally;
        this.history = history;
        this.clock = clock;
    }

    void arrived(Fetch fetch) {
        long nowNs = clock.nowNs();
        int pages = fetch.ask.pageCount();
        long bytes = bytesOf(fetch.ask.pages());
        tally.add(MessengerMetric.FETCHES_ARRIVED, 1);
        tally.add(MessengerMetric.PAGES_RECEIVED, layerPages(fetch.ask.pages()));
        tally.add(MessengerMetric.BYTES_RECEIVED, bytes);
        tally.observe(MessengerMetric.FETCH_SECONDS, (nowNs - fetch.askedNs) / 1e9);
        FetchTimeline timeline = new FetchTimeline(
                fetch.ask.request(),
                fetch.ask.transferId(),
                pages,
                bytes,
                fetch.askedNs,
                fetch.grantedNs,
                nowNs,
                fetch.prefillerNames(),
                fetch.ask.waits());
        engine.timeline(timeline); // before the event, so that the poll which delivers the event finds the timeline
        engine.arrived(fetch.ask.request(), pages);
        history.arrived(timeline);
    }

    private long bytesOf(List<int[]> pages) {
        long bytes = 0;
        for (RankGeometry rank : geometry.ranks()) {
            for (LayerGeometry layer : rank.layers()) {
                bytes += (long) layer.pageBytes() * pages.get(layer.groupIndex()).length;
            }
        }
        return bytes;
    }

    /** Pages transferred, counted per layer and summed over all ranks. */
    private long layerPages(List<int[]> pages) {
        long count = 0;
        for (RankGeometry rank : geometry.ranks()) {
            for (LayerGeometry layer : rank.layers()) {
                count += pages.get(layer.groupIndex()).length;
            }
        }
        return count;
    }
}
