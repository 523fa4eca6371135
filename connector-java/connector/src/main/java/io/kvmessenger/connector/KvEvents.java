package io.kvmessenger.connector;

import io.kvmessenger.messenger.port.ChunkTimeline;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EventSink;
import io.kvmessenger.messenger.port.FetchTimeline;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.PrefillTimeline;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * The events of a KV cache, as JSON objects (docs/boundary.md).
 *
 * <p>Called by the messenger's thread. Every free text is cut, and names are short ({@link CommandReader}). Timelines are
 * notes, which may be dropped.
 */
final class KvEvents implements EngineEvents {
    /** How much detail of a transfer's timing the engine receives. */
    enum Timelines {
        OFF,
        SUMMARY,
        /** Totals and each chunk and layer, if they fit. */
        FULL
    }

    /** Limit on a timeline with its chunks (of a long prompt the first and last ones); beyond it only sums are kept. */
    static final int TIMELINE_LENGTH_MAX_BYTES = 32 << 10;

    /** Minimum length of one layer of a chunk. */
    private static final int TIMELINE_LAYER_LENGTH_MIN_BYTES = 50;

    private final EventSink sink;
    private final Tally tally;
    private final Timelines timelines;
    private final NanoClock clock;

    KvEvents(EventSink sink, Tally tally, Timelines timelines, NanoClock clock) {
        this.sink = sink;
        this.tally = tally;
        this.timelines = timelines;
        this.clock = clock;
    }

    @Override
    public void released(String request) {
        sink.add(Map.of("event", "released", "request", request));
    }

    @Override
    public void granted(String request, int promptTokens, int firstToken, List<String> contextKinds) {
        sink.add(Map.of(
                "event",
                "granted",
                "request",
                request,
                "promptTokens",
                promptTokens,
                "firstToken",
                firstToken,
                "contextKinds",
                contextKinds));
    }

    @Override
    public void stopped(String request, String reason) {
        sink.add(Map.of("event", "stopped", "request", request, "reason", EventQueue.cut(reason)));
    }

    @Override
    public void arrived(String request, int pageCount) {
        long arrivedNs = clock.nowNs();
        sink.add(
                Map.of("event", "arrived", "request", request, "pages", pageCount),
                () -> tally.observe(MessengerMetric.READY_POLL_SECONDS, (clock.nowNs() - arrivedNs) / 1e9));
    }

    @Override
    public void failed(String request, String reason) {
        sink.add(Map.of("event", "failed", "request", request, "reason", EventQueue.cut(reason)));
    }

    @Override
    public void quarantined(String request, String reason) {
        sink.add(Map.of("event", "quarantined", "request", request, "reason", EventQueue.cut(reason)));
    }

    @Override
    public void prefilled(TransferKey transfer) {
        sink.add(Map.of("event", "prefilled", "transfer", transfer.id(), "promptDigest", transfer.digest()));
    }

    @Override
    public void offered(String request, int heldTokens, OfferOutcome outcome) {
        sink.add(Map.of(
                "event",
                "offered",
                "request",
                request,
                "heldTokens",
                heldTokens,
                "reason",
                outcome == OfferOutcome.HELD ? "" : outcome.label()));
    }

    @Override
    public void connected(String host, int port, long incarnation) {
        sink.add(
                Map.of("event", "connected", "host", host, "port", port, "incarnation", Long.toHexString(incarnation)));
    }

    @Override
    public void disconnected(String host, int port) {
        sink.add(Map.of("event", "disconnected", "host", host, "port", port));
    }

    @Override
    public void log(Level level, String message) {
        sink.log(level, message);
    }

    @Override
    public void timeline(FetchTimeline timeline) {
        if (timelines == Timelines.OFF) {
            return;
        }
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("event", "timeline");
        json.put("side", "decoder");
        json.put("transfer", timeline.transferId());
        json.put("request", timeline.request());
        json.put("pages", timeline.pageCount());
        json.put("bytes", timeline.bytes());
        if (timeline.waits().ns() > 0) {
            json.put(
                    "answerMicros",
                    TimeUnit.NANOSECONDS.toMicros(timeline.waits().answerNs()));
            json.put(
                    "pagesMicros",
                    TimeUnit.NANOSECONDS.toMicros(timeline.waits().pagesNs()));
        }
        json.put("askedNs", timeline.askedNs());
        json.put("grantedNs", timeline.grantedNs());
        json.put("readyNs", timeline.readyNs());
        json.put("prefiller", EventQueue.cut(timeline.prefiller()));
        sink.note(json);
    }

    @Override
    public void timeline(PrefillTimeline timeline) {
        if (timelines == Timelines.OFF) {
            return;
        }
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("event", "timeline");
        json.put("side", "prefiller");
        json.put("transfer", timeline.transferId());
        json.put("request", timeline.request());
        json.put("peer", EventQueue.cut(timeline.decoder()));
        json.put("promptTokens", timeline.promptTokens());
        json.put("pages", timeline.pagesSent());
        json.put("bytes", timeline.bytesSent());
        json.put("grantReceivedNs", timeline.grantedNs());
        json.put("firstSubmittedNs", timeline.sums().firstSubmittedNs());
        json.put("lastLeftNs", timeline.lastLeftNs());
        json.put("forwardEndNs", timeline.sums().forwardEndNs());
        json.put("transport", EventQueue.cut(timeline.transport()));
        json.put("chunkCount", timeline.sums().chunkCount());
        json.put("layersSent", timeline.sums().layersSent());
        json.put("layersSentEarly", timeline.sums().layersSentEarly());
        sink.note(withChunks(json, timeline));
    }

    private Map<String, Object> withChunks(Map<String, Object> sums, PrefillTimeline timeline) {
        long layers =
                timeline.chunks().stream().mapToLong(ChunkTimeline::layerCount).sum();
        if (timelines != Timelines.FULL || layers * TIMELINE_LAYER_LENGTH_MIN_BYTES > TIMELINE_LENGTH_MAX_BYTES) {
            return sums;
        }
        Map<String, Object> whole = new LinkedHashMap<>(sums);
        whole.put("chunks", timeline.chunks().stream().map(KvEvents::chunk).toList());
        return EventQueue.encode(whole).length > TIMELINE_LENGTH_MAX_BYTES ? sums : whole;
    }

    private static Map<String, Object> chunk(ChunkTimeline chunk) {
        List<Map<String, Object>> layers = new ArrayList<>();
        for (int layer = 0; layer < chunk.layerCount(); layer++) {
            Map<String, Object> json = new LinkedHashMap<>();
            json.put("layer", layer);
            json.put("readableNs", chunk.readableNs(layer));
            json.put("submittedNs", chunk.submittedNs(layer));
            json.put("leftNs", chunk.leftNs(layer));
            layers.add(json);
        }
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("firstToken", chunk.firstToken());
        json.put("endToken", chunk.endToken());
        json.put("forwardStartNs", chunk.forwardStartNs());
        json.put("forwardEndNs", chunk.forwardEndNs());
        json.put("layers", layers);
        return json;
    }
}
