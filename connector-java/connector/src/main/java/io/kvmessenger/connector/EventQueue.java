package io.kvmessenger.connector;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.json.JsonWriteFeature;
import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.messenger.port.ChunkTimeline;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.FetchTimeline;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.PrefillTimeline;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
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
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/**
 * The events for the engine's next poll, as JSON.
 *
 * <p>Any thread adds, and any may wait until there is an event; the engine's drains. Events that the engine waits for
 * are always kept: each request causes only a few, so the engine bounds them itself. Every free text in them is cut, and
 * names are short ({@link CommandReader}), so they always fit into a poll. Notes, which are log lines and timelines, are dropped beyond a number and a sum of bytes, and when one is larger
 * than a poll. So no event blocks those behind it.
 */
final class EventQueue implements EngineEvents {
    /** Limit on log lines and timelines that wait for a poll. */
    static final int NOTES_MAX = 4096;

    /** Limit on their bytes: an engine that does not poll must not exhaust the heap. */
    static final long NOTES_LENGTH_MAX_BYTES = 4 << 20;

    /** Longest sentence; escaped, at six bytes a character, it fits into the smallest poll with any request. */
    static final int SENTENCE_LENGTH_MAX = 8192;

    /** Smallest capacity of a poll (docs/boundary.md), into which every event fits but a note. */
    static final int POLL_CAPACITY_MIN_BYTES = 64 << 10;

    /** Escapes all but ASCII: an unpaired surrogate, which an engine's id may contain, has no UTF-8 encoding. */
    private static final JSON WRITER = JSON.builder(JsonFactory.builder()
                    .enable(JsonWriteFeature.ESCAPE_NON_ASCII)
                    .build())
            .build();

    /** Limit on a timeline with its chunks (of a long prompt the first and last ones); beyond it only sums are kept. */
    static final int TIMELINE_LENGTH_MAX_BYTES = 32 << 10;

    /** Minimum length of one layer of a chunk. */
    private static final int TIMELINE_LAYER_LENGTH_MIN_BYTES = 50;

    private static final byte[] HEAD = "{\"events\":[".getBytes(StandardCharsets.UTF_8);
    private static final byte[] TAIL = "]}".getBytes(StandardCharsets.UTF_8);
    private static final byte[] NOTHING = new byte[0];

    /** @param arrivedNs when a fetch arrived; 0 for any other event */
    private record Event(byte[] json, boolean note, long arrivedNs) {}

    private final Queue<Event> events = new ConcurrentLinkedQueue<>();

    /** Threads that wait for an event. */
    private final Queue<Thread> waiting = new ConcurrentLinkedQueue<>();

    private final AtomicInteger notes = new AtomicInteger();
    private final AtomicLong noteBytes = new AtomicLong();
    private final Tally tally;
    private final OpenRequest.Timelines timelines;
    private final NanoClock clock;

    EventQueue(Tally tally, OpenRequest.Timelines timelines, NanoClock clock) {
        this.tally = tally;
        this.clock = clock;
        this.timelines = timelines;
    }

    @Override
    public void released(String request) {
        kept(Map.of("event", "released", "request", request));
    }

    @Override
    public void granted(String request, int promptTokens, int firstToken, List<String> contextKinds) {
        kept(Map.of(
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
        kept(Map.of("event", "stopped", "request", request, "reason", cut(reason)));
    }

    @Override
    public void arrived(String request, int pageCount) {
        byte[] json = encode(Map.of("event", "arrived", "request", request, "pages", pageCount));
        add(new Event(json, false, clock.nowNs()));
    }

    @Override
    public void failed(String request, String reason) {
        kept(Map.of("event", "failed", "request", request, "reason", cut(reason)));
    }

    @Override
    public void quarantined(String request, String reason) {
        kept(Map.of("event", "quarantined", "request", request, "reason", cut(reason)));
    }

    @Override
    public void prefilled(TransferKey transfer) {
        kept(Map.of("event", "prefilled", "transfer", transfer.id(), "promptDigest", transfer.digest()));
    }

    @Override
    public void connected(String host, int port, long incarnation) {
        kept(Map.of("event", "connected", "host", host, "port", port, "incarnation", Long.toHexString(incarnation)));
    }

    @Override
    public void log(Level level, String message) {
        note(Map.of("event", "log", "level", level.name().toLowerCase(Locale.ROOT), "message", cut(message)));
    }

    @Override
    public void timeline(FetchTimeline timeline) {
        if (timelines == OpenRequest.Timelines.OFF) {
            return;
        }
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
        json.put("prefiller", cut(timeline.prefiller()));
        note(json);
    }

    @Override
    public void timeline(PrefillTimeline timeline) {
        if (timelines == OpenRequest.Timelines.OFF) {
            return;
        }
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("event", "timeline");
        json.put("side", "prefiller");
        json.put("transfer", timeline.transferId());
        json.put("request", timeline.request());
        json.put("peer", cut(timeline.decoder()));
        json.put("promptTokens", timeline.promptTokens());
        json.put("pages", timeline.pagesSent());
        json.put("bytes", timeline.bytesSent());
        json.put("grantReceivedNs", timeline.grantedNs());
        json.put("firstSubmittedNs", timeline.sums().firstSubmittedNs());
        json.put("lastLeftNs", timeline.lastLeftNs());
        json.put("forwardEndNs", timeline.sums().forwardEndNs());
        json.put("transport", cut(timeline.transport()));
        json.put("chunkCount", timeline.sums().chunkCount());
        json.put("layersSent", timeline.sums().layersSent());
        json.put("layersSentEarly", timeline.sums().layersSentEarly());
        note(withChunks(json, timeline));
    }

    private Map<String, Object> withChunks(Map<String, Object> sums, PrefillTimeline timeline) {
        long layers =
                timeline.chunks().stream().mapToLong(ChunkTimeline::layerCount).sum();
        if (timelines != OpenRequest.Timelines.FULL
                || layers * TIMELINE_LAYER_LENGTH_MIN_BYTES > TIMELINE_LENGTH_MAX_BYTES) {
            return sums;
        }
        Map<String, Object> whole = new LinkedHashMap<>(sums);
        whole.put("chunks", timeline.chunks().stream().map(EventQueue::chunk).toList());
        return encode(whole).length > TIMELINE_LENGTH_MAX_BYTES ? sums : whole;
    }

    /** Blocks until there is an event to take, or the limit has passed. No wake-up is lost; notes do not end a wait. */
    void await(long limitNs) {
        long deadlineNs = clock.nowNs() + limitNs;
        waiting.add(Thread.currentThread()); // before the check, so that whatever is added after it wakes this thread
        try {
            long leftNs = limitNs;
            while (leftNs > 0 && !hasEvents() && !Thread.currentThread().isInterrupted()) {
                LockSupport.parkNanos(this, leftNs);
                leftNs = deadlineNs - clock.nowNs();
            }
        } finally {
            waiting.remove(Thread.currentThread());
        }
    }

    boolean hasEvents() {
        return !events.isEmpty();
    }

    /** The next events that fit, or none. Below {@link #POLL_CAPACITY_MIN_BYTES} none may fit: the caller's error. */
    byte[] drain(int capacityBytes) {
        dropLongNotes(capacityBytes);
        Event next = events.peek();
        if (next == null) {
            return NOTHING;
        }
        if (enclosedBytes(next) > capacityBytes) {
            throw new IllegalArgumentException(
                    "poll was given " + capacityBytes + " bytes, the next event needs " + enclosedBytes(next));
        }
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        out.writeBytes(HEAD);
        String separator = "";
        while (next != null && out.size() + separator.length() + next.json.length + TAIL.length <= capacityBytes) {
            remove();
            out.writeBytes(separator.getBytes(StandardCharsets.UTF_8));
            out.writeBytes(next.json);
            separator = ",";
            next = events.peek();
        }
        out.writeBytes(TAIL);
        return out.toByteArray();
    }

    /** Drops notes that are too large for the poll, up to the next event that is not. */
    private void dropLongNotes(int capacityBytes) {
        for (Event next = events.peek();
                next != null && next.note && enclosedBytes(next) > capacityBytes;
                next = events.peek()) {
            remove();
            tally.add(MessengerMetric.EVENTS_DROPPED, 1);
        }
    }

    private void remove() {
        Event removed = events.remove();
        if (removed.arrivedNs != 0) {
            tally.observe(MessengerMetric.READY_POLL_SECONDS, (clock.nowNs() - removed.arrivedNs) / 1e9);
        }
        if (removed.note) {
            notes.decrementAndGet();
            noteBytes.addAndGet(-removed.json.length);
        }
    }

    private static int enclosedBytes(Event event) {
        return HEAD.length + event.json.length + TAIL.length;
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

    /** @throws AssertionError if it is no note and fits into no poll: its request would wait for ever */
    private void add(Event event) {
        if (!event.note && enclosedBytes(event) > POLL_CAPACITY_MIN_BYTES) {
            throw new AssertionError("an event of " + event.json.length + " bytes fits into no poll");
        }
        events.add(event);
        if (!event.note) {
            waiting.forEach(LockSupport::unpark);
        }
    }

    private void kept(Map<String, Object> json) {
        add(new Event(encode(json), false, 0));
    }

    private void note(Map<String, Object> json) {
        byte[] encoded = encode(json);
        int count = notes.incrementAndGet();
        long bytes = noteBytes.addAndGet(encoded.length);
        if (count > NOTES_MAX || bytes > NOTES_LENGTH_MAX_BYTES) {
            notes.decrementAndGet();
            noteBytes.addAndGet(-encoded.length);
            tally.add(MessengerMetric.EVENTS_DROPPED, 1);
            return;
        }
        add(new Event(encoded, true, 0));
    }

    private static byte[] encode(Map<String, Object> json) {
        try {
            return WRITER.asBytes(json);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
