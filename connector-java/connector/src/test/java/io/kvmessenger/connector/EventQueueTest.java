package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.messenger.port.ChunkSums;
import io.kvmessenger.messenger.port.ChunkTimeline;
import io.kvmessenger.messenger.port.CountedReason;
import io.kvmessenger.messenger.port.EngineCommand.PullWaits;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.port.FetchTimeline;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.PrefillTimeline;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import java.io.IOException;
import java.lang.reflect.Method;
import java.lang.reflect.RecordComponent;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

class EventQueueTest {
    /** The smallest poll of docs/boundary.md. */
    private static final int POLL_BYTES = 64 << 10;

    private final List<MessengerMetric> counted = new ArrayList<>();
    private final EventQueue queue = new EventQueue(new CountingTally(counted), System::nanoTime);
    private final KvEvents engine =
            new KvEvents(queue, new CountingTally(counted), KvEvents.Timelines.FULL, System::nanoTime);

    @Test
    void shouldSayNothingInNoBytes() {
        assertThat(queue.drain(1 << 16)).isEmpty();
    }

    @Test
    void shouldKeepWhatDoesNotFitForTheNextPoll() throws Exception {
        for (int i = 0; i < 100; i++) {
            engine.released("request-" + i);
        }
        int seen = 0;
        for (byte[] json = queue.drain(512); json.length > 0; json = queue.drain(512)) {
            assertThat(json.length).isLessThanOrEqualTo(512);
            for (Object event : (List<?>) JSON.std.mapFrom(json).get("events")) {
                assertThat(((Map<?, ?>) event).get("request")).isEqualTo("request-" + seen++);
            }
        }
        assertThat(seen).isEqualTo(100);
    }

    @Test
    @Timeout(900)
    void shouldEndTheWaitOfEveryThreadWithAnEvent() throws Exception {
        List<Thread> waiting = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            waiting.add(Thread.ofPlatform().start(() -> queue.await(Long.MAX_VALUE / 2)));
        }
        for (Thread thread : waiting) {
            while (thread.getState() != Thread.State.TIMED_WAITING) {
                Thread.onSpinWait();
            }
        }
        queue.log(EngineLog.Level.INFO, "a note is in no hurry");
        engine.released("r");
        for (Thread thread : waiting) {
            thread.join();
        }
        queue.await(Long.MAX_VALUE / 2);
    }

    /** An event may come at any moment of a wait's begin; a wait that missed one would last until the time is over. */
    @Test
    @Timeout(900)
    void shouldNeverMissAnEventThatComesWhileAWaitBegins() throws Exception {
        int count = 20_000;
        Thread.ofPlatform().start(() -> {
            for (int i = 0; i < count; i++) {
                while (queue.hasEvents()) {
                    Thread.onSpinWait();
                }
                engine.released("r");
            }
        });
        int seen = 0;
        while (seen < count) {
            queue.await(Long.MAX_VALUE / 2);
            byte[] json = queue.drain(POLL_BYTES);
            assertThat(json).as("after %d events", seen).isNotEmpty();
            seen += ((List<?>) JSON.std.mapFrom(json).get("events")).size();
        }
    }

    @Test
    void shouldEndAWaitWithoutAnEventAtItsLimit() {
        long begunNs = System.nanoTime();
        queue.await(2_000_000);
        assertThat(System.nanoTime() - begunNs).isGreaterThanOrEqualTo(2_000_000);
        assertThat(queue.drain(POLL_BYTES)).isEmpty();
    }

    @Test
    void shouldRefuseAPollTooSmallForTheNextEventAndKeepIt() {
        engine.failed("r", "x".repeat(300));
        assertThatThrownBy(() -> queue.drain(100)).hasMessageContaining("poll was given 100 bytes");
        assertThat(queue.drain(1000)).isNotEmpty();
    }

    /** Every event, whatever its free text, leaves in the smallest poll; so does the one behind it. */
    @ParameterizedTest
    @MethodSource("freeTexts")
    void shouldLeaveInTheSmallestPollWhateverItsSentence(String sentence) throws Exception {
        engine.stopped("r", sentence);
        engine.failed("r", sentence);
        engine.quarantined("r", sentence);
        for (EngineLog.Level level : EngineLog.Level.values()) {
            queue.log(level, sentence);
        }
        engine.arrived("r", 1);

        List<Object> kinds = new ArrayList<>();
        for (byte[] json = queue.drain(POLL_BYTES); json.length > 0; json = queue.drain(POLL_BYTES)) {
            assertThat(json.length).isLessThanOrEqualTo(POLL_BYTES);
            for (Object event : (List<?>) JSON.std.mapFrom(json).get("events")) {
                kinds.add(((Map<?, ?>) event).get("event"));
            }
        }
        assertThat(kinds).containsExactly("stopped", "failed", "quarantined", "log", "log", "log", "arrived");
    }

    static List<String> freeTexts() {
        return List.of(
                "x".repeat(1 << 20),
                "\u0000".repeat(1 << 20),
                "\uD83D\uDE00".repeat(1 << 20),
                "x\uD83D\uDE00".repeat(1 << 20));
    }

    /** Finds the free texts of new events by itself. */
    @Test
    void shouldCutEveryFreeTextOfEveryEvent() throws Exception {
        for (Method event : EngineEvents.class.getMethods()) {
            Object[] arguments = new Object[event.getParameterCount()];
            for (int i = 0; i < arguments.length; i++) {
                arguments[i] = event.getParameterTypes()[i] == TransferKey.class
                        ? new TransferKey("t", "")
                        : argument(event.getParameterTypes()[i], i == 0);
            }
            event.invoke(engine, arguments);
        }
        engine.released("behind all");

        String reported = "";
        for (byte[] json = queue.drain(POLL_BYTES); json.length > 0; json = queue.drain(POLL_BYTES)) {
            reported = new String(json, StandardCharsets.UTF_8);
        }
        assertThat(reported).contains("behind all");
        assertThat(counted).hasSize(2).containsOnly(MessengerMetric.EVENTS_DROPPED); // timelines: they name a transfer
    }

    private static Object argument(Class<?> type, boolean first) throws ReflectiveOperationException {
        if (type.isRecord()) {
            RecordComponent[] components = type.getRecordComponents();
            Object[] values = new Object[components.length];
            for (int i = 0; i < values.length; i++) {
                values[i] = argument(components[i].getType(), false);
            }
            return type.getConstructors()[0].newInstance(values);
        }
        if (type == int.class) {
            return 1;
        }
        if (type == long.class) {
            return 1L;
        }
        if (type == List.class) {
            return List.of();
        }
        if (type.isEnum()) {
            return type.getEnumConstants()[0];
        }
        return first ? "r" : "x".repeat(1 << 20);
    }

    @Test
    void shouldSayWhatIsOfferedOrWhyNothingIs() throws IOException {
        engine.offered("r", 32, OfferOutcome.HELD);
        engine.offered("s", 0, OfferOutcome.PEER_TOO_OLD);

        assertThat(JSON.std.mapFrom(queue.drain(POLL_BYTES)).get("events"))
                .isEqualTo(List.of(
                        Map.of("event", "offered", "request", "r", "heldTokens", 32, "reason", ""),
                        Map.of("event", "offered", "request", "s", "heldTokens", 0, "reason", "peer_too_old")));
    }

    @Test
    void shouldNameInATimelineWhatAPullWaitedFor() throws IOException {
        engine.timeline(new FetchTimeline("r", "t", 1, 1, 1, 1, 1, "prefiller", new PullWaits(6_000, 7_000)));
        engine.timeline(new FetchTimeline("s", "u", 1, 1, 1, 1, 1, "prefiller", PullWaits.NONE));

        String events = new String(queue.drain(POLL_BYTES), StandardCharsets.UTF_8);
        assertThat(events).containsOnlyOnce("Micros\":6").containsOnlyOnce("\"pagesMicros\":7");
    }

    @Test
    void shouldDropATimelineThatNoPollCanCarry() {
        engine.timeline(new FetchTimeline("r", "t".repeat(1 << 20), 1, 1, 1, 1, 1, "prefiller", PullWaits.NONE));
        engine.released("r");

        assertThat(new String(queue.drain(POLL_BYTES), StandardCharsets.UTF_8)).contains("released");
        assertThat(counted).containsExactly(MessengerMetric.EVENTS_DROPPED);
    }

    private static PrefillTimeline timeline(int chunkCount, int layerCount) {
        List<ChunkTimeline> chunks = new ArrayList<>();
        for (int chunk = 0; chunk < chunkCount; chunk++) {
            chunks.add(new ChunkTimeline(512 * chunk, 512 * (chunk + 1), layerCount, System.nanoTime()));
        }
        ChunkSums sums = new ChunkSums(chunkCount, 5, 0, 0, 0);
        return new PrefillTimeline("r", "t", 1_000_000, 1, 2, 3, 4, "shm", "decoder", sums, chunks);
    }

    private String reported(KvEvents.Timelines timelines, PrefillTimeline timeline) {
        EventQueue events = new EventQueue(new CountingTally(counted), System::nanoTime);
        new KvEvents(events, new CountingTally(counted), timelines, System::nanoTime).timeline(timeline);
        return new String(events.drain(POLL_BYTES), StandardCharsets.UTF_8);
    }

    @Test
    void shouldReportASumOfALongPromptWhateverIsAskedFor() {
        PrefillTimeline million = timeline(1954, 126);
        for (KvEvents.Timelines asked : List.of(KvEvents.Timelines.SUMMARY, KvEvents.Timelines.FULL)) {
            assertThat(reported(asked, million))
                    .hasSizeLessThan(1024)
                    .contains("\"chunkCount\":1954", "\"layersSent\":0")
                    .doesNotContain("\"chunks\"");
        }
        assertThat(counted).isEmpty();
    }

    @Test
    void shouldReportChunksOnlyWhereTheyAreAskedFor() {
        assertThat(reported(KvEvents.Timelines.FULL, timeline(2, 2))).contains("\"chunks\"");
        assertThat(reported(KvEvents.Timelines.SUMMARY, timeline(2, 2)))
                .contains("\"forwardEndNs\":0")
                .doesNotContain("\"chunks\"");
        assertThat(reported(KvEvents.Timelines.OFF, timeline(2, 2))).isEmpty();
    }

    /** A request's end that is dropped leaks its pages for good. Commands with such names are refused. */
    @Test
    void shouldNotTakeAnEndThatFitsIntoNoPoll() {
        String name = "x".repeat(1 << 20);
        for (Runnable end : List.<Runnable>of(
                () -> engine.released(name),
                () -> engine.arrived(name, 1),
                () -> engine.failed(name, ""),
                () -> engine.quarantined(name, ""),
                () -> engine.stopped(name, ""),
                () -> engine.granted(name, 1, 0, List.of()),
                () -> engine.prefilled(new TransferKey(name, "")))) {
            assertThatThrownBy(end::run).isInstanceOf(AssertionError.class).hasMessageContaining("fits into no poll");
        }
        assertThat(counted).isEmpty();
        assertThat(queue.hasEvents()).isFalse();
    }

    /** The longest names that commands may have, each character escaped. */
    @Test
    void shouldLeaveWholeWithTheLongestNamesAndSentences() {
        String request = "\uD83D".repeat(CommandReader.REQUEST_LENGTH_MAX);
        String transfer = "\uD83D".repeat(CommandReader.TRANSFER_LENGTH_MAX);
        engine.failed(request, "\uD83D".repeat(1 << 20));
        engine.prefilled(new TransferKey(transfer, transfer));
        engine.granted(request, 1, 0, Collections.nCopies(16, "\uD83D".repeat(64)));

        int polls = 0;
        while (queue.drain(POLL_BYTES).length > 0) {
            polls++;
        }
        assertThat(polls).isBetween(1, 3);
        assertThat(counted).isEmpty();
    }

    /** Half of a surrogate pair comes in by JSON's escapes, and has to go out as it came. */
    @Test
    void shouldEchoAnIdThatHoldsHalfAPair() throws Exception {
        engine.released("half \uD83D of a pair");

        assertThat(JSON.std.mapFrom(queue.drain(POLL_BYTES)).toString()).contains("half \uD83D of a pair");
    }

    @Test
    void shouldBoundTheBytesOfNotes() {
        for (int i = 0; i < EventQueue.NOTES_MAX; i++) {
            queue.log(EngineLog.Level.INFO, "x".repeat(EventQueue.SENTENCE_LENGTH_MAX));
        }
        assertThat(queue.drain(Integer.MAX_VALUE - 8).length)
                .isLessThanOrEqualTo((int) EventQueue.NOTES_LENGTH_MAX_BYTES + POLL_BYTES);
        counted.clear();
        queue.log(EngineLog.Level.INFO, "again");
        assertThat(counted).isEmpty();
    }

    @Test
    void shouldDropLogLinesBeyondTheLimitButNeverTerminalEvents() throws Exception {
        for (int i = 0; i < EventQueue.NOTES_MAX + 10; i++) {
            queue.log(EngineLog.Level.INFO, "line");
        }
        engine.arrived("r", 1);
        List<?> events =
                (List<?>) JSON.std.mapFrom(queue.drain(Integer.MAX_VALUE - 8)).get("events");
        assertThat(events).hasSize(EventQueue.NOTES_MAX + 1);
        assertThat(((Map<?, ?>) events.getLast()).get("event")).isEqualTo("arrived");
        assertThat(counted).hasSize(10).containsOnly(MessengerMetric.EVENTS_DROPPED);
    }

    record CountingTally(List<MessengerMetric> counted) implements Tally {
        @Override
        public void add(MessengerMetric metric, long count) {
            counted.add(metric);
        }

        @Override
        public void add(MessengerMetric metric, CountedReason reason) {
            counted.add(metric);
        }

        @Override
        public void set(MessengerMetric metric, long value) {}

        @Override
        public void observe(MessengerMetric metric, double value) {}
    }
}
