package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.ChunkPages;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/**
 * Questions, their answers and what comes of them in random orders, with frames that cross, sessions that end and open
 * anew, and limits that are over: at a messenger that is asked, and at one that only keeps its part. Each offer is
 * released once, each question answered once, each fetch ended once, and nothing stays held.
 */
class OfferOrdersTest extends MessengerPair {
    private static final long SEEDS = 500;
    private static final int QUESTIONS = 2;
    private static final int OFFERS_MAX = 6;
    private static final int CYCLE_NS = 20;
    private static final int CYCLES_TO_REST = 400;
    private static final List<PrefillerAddress> SOURCE = List.of(new PrefillerAddress("host", 7, ""));
    private static final int HELD_TOKENS = 2 * Geometries.PAGE_TOKENS;

    private final Deque<ControlFrame> toDecoder = new ArrayDeque<>();
    private final Deque<ControlFrame> toPrefiller = new ArrayDeque<>();
    private SplittableRandom random;
    private Question question;
    private int offers;
    private int revokedSeen;
    private List<String> trace;

    private static final class Question {
        final String request;
        final TransferKey transfer;
        /** Whether the source's messenger is the one that is asked. */
        final boolean comesHere;

        boolean asked;
        boolean fetched;
        boolean declined;

        Question(int number, boolean comesHere) {
            request = "q" + number;
            transfer = new TransferKey("pull-" + number, "ab");
            this.comesHere = comesHere;
        }
    }

    @Test
    void shouldReleaseEachOfferOnceInAnyOrder() {
        for (long seed = 1; seed <= SEEDS; seed++) {
            try {
                run(seed);
            } catch (RuntimeException | Error bug) {
                throw new AssertionError(
                        "seed " + seed + " " + trace + ", source " + prefiller.reported + ", asker " + decoder.reported,
                        bug);
            }
        }
    }

    private void run(long seed) {
        random = new SplittableRandom(seed);
        prefiller = new Side("prefiller", 1, 0);
        decoder = new Side("decoder", 2, 0);
        trace = new ArrayList<>();
        toDecoder.clear();
        toPrefiller.clear();
        fetch("warm-up", 1, 0);
        meet();
        offers = 0;
        revokedSeen = 0;
        for (int i = 0; i < QUESTIONS; i++) {
            question = new Question(i, random.nextBoolean());
            int steps = 5 + random.nextInt(25);
            for (int step = 0; step < steps; step++) {
                act();
            }
            finish();
        }
    }

    private void act() {
        switch (random.nextInt(11)) {
            case 0 -> ask();
            case 1, 2 -> offer();
            case 3 -> fetchHeld();
            case 4 -> giveUp();
            case 5 -> {
                if (random.nextInt(3) == 0) {
                    withdraw();
                }
            }
            case 6 -> pass(random.nextInt(8) == 0 ? limits.offerLimitNs() : random.nextInt(CYCLE_NS));
            case 7 -> write();
            case 8, 9 -> deliver();
            default -> {
                if (random.nextInt(6) == 0) {
                    lose();
                }
            }
        }
        work();
    }

    private void note(String what) {
        trace.add(what);
    }

    private void ask() {
        if (question.asked) {
            return;
        }
        question.asked = true;
        note("ask " + question.comesHere);
        if (question.comesHere) {
            int[] tokens =
                    IntStream.range(0, HELD_TOKENS + Geometries.PAGE_TOKENS).toArray();
            decoder.cache.onCommand(new EngineCommand.Ask(
                    question.request,
                    question.transfer,
                    SOURCE.getFirst(),
                    new EngineCommand.Prompt(tokens, "salt", 0),
                    50 + random.nextInt(200)));
        }
    }

    private void offer() {
        if (offers >= OFFERS_MAX
                || (question.comesHere && prefiller.asked.stream().noneMatch(question.transfer::equals))) {
            return;
        }
        offers++;
        note("offer o" + offers);
        prefiller.cache.onCommand(new EngineCommand.Offer(
                "o" + offers,
                question.transfer,
                question.comesHere,
                HELD_TOKENS,
                List.of(new ChunkPages(0, new int[] {5, 6})),
                OfferOutcome.HELD));
    }

    private void fetchHeld() {
        boolean held = !question.comesHere
                || decoder.reported.contains("offered " + question.request + " " + HELD_TOKENS + " HELD");
        if (question.fetched || question.declined || !question.asked || !held) {
            return;
        }
        question.fetched = true;
        note("fetch");
        decoder.cache.onCommand(new EngineCommand.Fetch(
                question.request,
                question.transfer.id(),
                SOURCE,
                HELD_TOKENS,
                0,
                List.of(new int[] {3, 4}),
                -1,
                List.of(),
                500,
                question.transfer.digest(),
                EngineCommand.Prompt.NONE,
                EngineCommand.PullWaits.NONE));
    }

    private void giveUp() {
        if (!question.asked || random.nextInt(2) == 0) {
            return;
        }
        if (question.fetched) {
            note("abandon");
            decoder.cache.onCommand(new EngineCommand.Abandon(question.request));
        } else if (!question.declined) {
            question.declined = true;
            note("decline");
            decoder.cache.onCommand(new EngineCommand.Decline(question.transfer, SOURCE));
        }
    }

    private void withdraw() {
        for (int o = 1; o <= offers; o++) {
            if (!prefiller.reported.contains("released o" + o)) {
                note("withdraw o" + o);
                prefiller.cache.onCommand(new EngineCommand.Withdraw("o" + o));
            }
        }
    }

    private void pass(long ns) {
        note("pass " + ns);
        for (long left = ns; left > 0; left -= CYCLE_NS) {
            nowNs += Math.min(left, CYCLE_NS);
            work();
            heartbeat(); // a session lives on though its other frames are late
        }
    }

    private void heartbeat() {
        takeAll();
        toDecoder.stream()
                .filter(ControlFrame::hasHeartbeat)
                .toList()
                .forEach(frame -> decoder.messenger.onFrame(Wire.DIALLED_LINK, frame));
        toPrefiller.stream()
                .filter(ControlFrame::hasHeartbeat)
                .toList()
                .forEach(frame -> prefiller.messenger.onFrame(Wire.DIALLED_LINK, frame));
        toDecoder.removeIf(ControlFrame::hasHeartbeat);
        toPrefiller.removeIf(ControlFrame::hasHeartbeat);
    }

    private void write() {
        if (!prefiller.transfer.submitted.isEmpty()) {
            note("write");
            long cookie = prefiller.transfer.submitted.removeFirst();
            prefiller.transfer.completions.add(handler -> handler.onWriteCompleted(cookie));
        }
    }

    private void takeAll() {
        toDecoder.addAll(prefiller.wire.take());
        toPrefiller.addAll(decoder.wire.take());
    }

    private void deliver() {
        takeAll();
        if (random.nextBoolean()) {
            if (!toDecoder.isEmpty()) {
                ControlFrame frame = toDecoder.removeFirst();
                note(">D " + frame.getBodyCase());
                decoder.messenger.onFrame(Wire.DIALLED_LINK, frame);
            }
        } else if (!toPrefiller.isEmpty()) {
            ControlFrame frame = toPrefiller.removeFirst();
            note(">P " + frame.getBodyCase());
            prefiller.messenger.onFrame(Wire.DIALLED_LINK, frame);
        }
    }

    private void lose() {
        note("lost");
        toDecoder.clear();
        toPrefiller.clear();
        prefiller.wire.take();
        decoder.wire.take();
        prefiller.messenger.onLinkClosed(Wire.DIALLED_LINK, "gone");
        decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "gone");
        toDecoder.clear();
        toPrefiller.clear();
        prefiller.wire.take();
        decoder.wire.take();
        decoder.cache.onCommand(new EngineCommand.Expect(new TransferKey("dial", "x"), SOURCE)); // dials again
        prefiller.messenger.onLinkOpened(Wire.DIALLED_LINK, true, "there:1");
        decoder.messenger.onLinkOpened(Wire.DIALLED_LINK, false, "host:7");
    }

    private void work() {
        prefiller.transfer.landsIn = decoder.transfer;
        prefiller.messenger.doWork();
        decoder.messenger.doWork();
        decoder.transfer.reportFilled();
        while (revokedSeen < decoder.transfer.revoked.size()) {
            Admission admission = decoder.transfer.revoked.get(revokedSeen++);
            decoder.transfer.completions.add(handler -> handler.onAdmissionClosed(admission, "revoked"));
        }
        decoder.messenger.doWork();
        takeAll();
        for (int o = 1; o <= offers; o++) {
            String released = "released o" + o;
            assertThat(prefiller.reported.stream().filter(released::equals).count())
                    .isLessThan(2);
        }
    }

    private void finish() {
        note("| end");
        for (int step = 0; step < CYCLES_TO_REST; step++) {
            write();
            takeAll();
            while (!toDecoder.isEmpty()) {
                decoder.messenger.onFrame(Wire.DIALLED_LINK, toDecoder.removeFirst());
            }
            while (!toPrefiller.isEmpty()) {
                prefiller.messenger.onFrame(Wire.DIALLED_LINK, toPrefiller.removeFirst());
            }
            nowNs += CYCLE_NS;
            work();
        }
        for (int o = 1; o <= offers; o++) {
            assertThat(prefiller.reported).contains("released o" + o);
        }
        if (question.fetched) {
            assertThat(decoder.reported.stream()
                            .filter(e ->
                                    e.equals("arrived " + question.request) || e.equals("failed " + question.request))
                            .count())
                    .isEqualTo(1);
        }
        long answers = decoder.reported.stream()
                .filter(e -> e.startsWith("offered " + question.request))
                .count();
        assertThat(answers).isLessThanOrEqualTo(1);
        if (question.asked && question.comesHere && !question.declined) {
            assertThat(answers).isEqualTo(1);
        }
        assertThat(prefiller.asksEnded).hasSameSizeAs(prefiller.asked);
        assertThat(prefiller.cache.held().clean()).isTrue();
        assertThat(decoder.cache.held().clean()).isTrue();
    }
}
