package io.kvmessenger.connector;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.json.JsonWriteFeature;
import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.messenger.port.EventSink;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.Tally;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
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
 * are always kept: each request causes only a few, so the engine bounds them itself. The subject keeps their texts so
 * short that they always fit into a poll. Notes, such as log lines, are dropped beyond a number and a sum of bytes, and
 * when one is larger than a poll. So no event blocks those behind it.
 */
final class EventQueue implements EventSink {
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

    private static final byte[] HEAD = "{\"events\":[".getBytes(StandardCharsets.UTF_8);
    private static final byte[] TAIL = "]}".getBytes(StandardCharsets.UTF_8);
    private static final byte[] NOTHING = new byte[0];

    /** @param onPolled runs when the engine takes it */
    private record Event(byte[] json, boolean note, Runnable onPolled) {}

    private final Queue<Event> events = new ConcurrentLinkedQueue<>();

    /** Threads that wait for an event. */
    private final Queue<Thread> waiting = new ConcurrentLinkedQueue<>();

    private final AtomicInteger notes = new AtomicInteger();
    private final AtomicLong noteBytes = new AtomicLong();
    private final Tally tally;
    private final NanoClock clock;

    EventQueue(Tally tally, NanoClock clock) {
        this.tally = tally;
        this.clock = clock;
    }

    @Override
    public void add(Map<String, Object> event) {
        add(event, EventQueue::noAction);
    }

    @Override
    public void add(Map<String, Object> event, Runnable onPolled) {
        add(new Event(encode(event), false, onPolled));
    }

    @Override
    public void log(Level level, String message) {
        note(Map.of("event", "log", "level", level.name().toLowerCase(Locale.ROOT), "message", cut(message)));
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

    private static void noAction() {}

    private void remove() {
        Event removed = events.remove();
        removed.onPolled.run();
        if (removed.note) {
            notes.decrementAndGet();
            noteBytes.addAndGet(-removed.json.length);
        }
    }

    private static int enclosedBytes(Event event) {
        return HEAD.length + event.json.length + TAIL.length;
    }

    /** The sentence, so short that its event fits into every poll. */
    static String cut(String sentence) {
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

    @Override
    public void note(Map<String, Object> json) {
        byte[] encoded = encode(json);
        int count = notes.incrementAndGet();
        long bytes = noteBytes.addAndGet(encoded.length);
        if (count > NOTES_MAX || bytes > NOTES_LENGTH_MAX_BYTES) {
            notes.decrementAndGet();
            noteBytes.addAndGet(-encoded.length);
            tally.add(MessengerMetric.EVENTS_DROPPED, 1);
            return;
        }
        add(new Event(encoded, true, EventQueue::noAction));
    }

    static byte[] encode(Map<String, Object> json) {
        try {
            return WRITER.asBytes(json);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
