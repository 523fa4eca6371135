package io.kvmessenger.connector;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.messenger.ChunkTimeline;
import io.kvmessenger.messenger.EngineEvents;
import io.kvmessenger.messenger.FetchTimeline;
import io.kvmessenger.messenger.MessengerMetric;
import io.kvmessenger.messenger.PrefillTimeline;
import io.kvmessenger.messenger.Tally;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * What the engine will be told at its next poll, as JSON.
 *
 * <p>Written by the messenger's thread, drained by the engine's. What the engine waits for is never dropped: there are a
 * few such events for each request it has handed over, so it bounds them itself. Log lines and timelines are dropped beyond a limit.
 */
final class EventQueue implements EngineEvents {
    /** Log lines and timelines that may wait for a poll. */
    static final int NOTES_MAX = 4096;

    /** Longest sentence; escaped it still fits into any poll, and an event that does not fit would block all behind it. */
    static final int SENTENCE_LENGTH_MAX = 8192;

    private static final byte[] HEAD = "{\"events\":[".getBytes(StandardCharsets.UTF_8);
    private static final byte[] TAIL = "]}".getBytes(StandardCharsets.UTF_8);
    private static final byte[] NOTHING = new byte[0];

    private record Event(byte[] json, boolean note) {}

    private final Queue<Event> events = new ConcurrentLinkedQueue<>();
    private final AtomicInteger notes = new AtomicInteger();
    private final Tally tally;

    EventQueue(Tally tally) {
        this.tally = tally;
    }

    @Override
    public void released(String request) {
        kept(Map.of("event", "released", "request", request));
    }

    @Override
    public void granted(String request, int promptTokens, int firstToken) {
        kept(Map.of("event", "granted", "request", request, "promptTokens", promptTokens, "firstToken", firstToken));
    }

    @Override
    public void stopped(String request, String reason) {
        kept(Map.of("event", "stopped", "request", request, "reason", cut(reason)));
    }

    @Override
    public void arrived(String request, int pageCount) {
        kept(Map.of("event", "arrived", "request", request, "pages", pageCount));
    }

    @Override
    public void failed(String request, String reason) {
        kept(Map.of("event", "failed", "request", request, "reason", cut(reason)));
    }

    @Override
    public void quarantined(String request, String reason) {
        kept(Map.of("event", "quarantined", "request", request, "reason", reason));
    }

    @Override
    public void log(Level level, String message) {
        note(Map.of("event", "log", "level", level.name().toLowerCase(Locale.ROOT), "message", cut(message)));
    }

    @Override
    public void timeline(FetchTimeline timeline) {
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("event", "timeline");
        json.put("side", "decoder");
        json.put("transfer", timeline.transferId());
        json.put("request", timeline.request());
        json.put("pages", timeline.pageCount());
        json.put("bytes", timeline.bytes());
        json.put("askedNs", timeline.askedNs());
        json.put("grantedNs", timeline.grantedNs());
        json.put("readyNs", timeline.readyNs());
        json.put("prefiller", timeline.prefiller());
        note(json);
    }

    @Override
    public void timeline(PrefillTimeline timeline) {
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("event", "timeline");
        json.put("side", "prefiller");
        json.put("transfer", timeline.transferId());
        json.put("request", timeline.request());
        json.put("promptTokens", timeline.promptTokens());
        json.put("pages", timeline.pagesSent());
        json.put("bytes", timeline.bytesSent());
        json.put("grantedNs", timeline.grantedNs());
        json.put("lastLeftNs", timeline.lastLeftNs());
        json.put("transport", timeline.transport());
        json.put("layersSentEarly", timeline.layersSentEarly());
        json.put("chunks", timeline.chunks().stream().map(EventQueue::chunk).toList());
        note(json);
    }

    /** The next events that fit, or an empty array; an event too large for any poll is an error of the caller. */
    byte[] drain(int capacityBytes) {
        Event next = events.peek();
        if (next == null) {
            return NOTHING;
        }
        if (HEAD.length + next.json.length + TAIL.length > capacityBytes) {
            throw new IllegalArgumentException("poll was given " + capacityBytes + " bytes, the next event needs "
                    + (HEAD.length + next.json.length + TAIL.length));
        }
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        out.writeBytes(HEAD);
        String separator = "";
        while (next != null && out.size() + separator.length() + next.json.length + TAIL.length <= capacityBytes) {
            events.remove();
            if (next.note) {
                notes.decrementAndGet();
            }
            out.writeBytes(separator.getBytes(StandardCharsets.UTF_8));
            out.writeBytes(next.json);
            separator = ",";
            next = events.peek();
        }
        out.writeBytes(TAIL);
        return out.toByteArray();
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

    private static String cut(String sentence) {
        return sentence.length() <= SENTENCE_LENGTH_MAX ? sentence : sentence.substring(0, SENTENCE_LENGTH_MAX) + " …";
    }

    private void kept(Map<String, Object> json) {
        events.add(new Event(encode(json), false));
    }

    private void note(Map<String, Object> json) {
        if (notes.incrementAndGet() > NOTES_MAX) {
            notes.decrementAndGet();
            tally.add(MessengerMetric.EVENTS_DROPPED, 1);
            return;
        }
        events.add(new Event(encode(json), true));
    }

    private static byte[] encode(Map<String, Object> json) {
        try {
            return JSON.std.asBytes(json);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
