package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** A prefiller's and a decoder's messenger, joined by a test that carries their frames one by one. */
class MessengerTest {
    private static final ProtocolLimits LIMITS = new ProtocolLimits(1000, 1000, 500, 100, 300);
    private static final int PROMPT_TOKENS = 2 * Geometries.PAGE_TOKENS;

    private long nowNs;
    private Side prefiller = new Side("prefiller", 1, 0);
    private Side decoder = new Side("decoder", 2, 0);

    /** One messenger on recording ports. */
    private final class Side implements EngineEvents, EngineIntake, LayerProgress {
        final Wire wire = new Wire();
        final RecordingTransferEngine transfer = new RecordingTransferEngine();
        final List<String> told = new ArrayList<>();
        final List<String> enqueued = new ArrayList<>();
        final Messenger messenger;
        int readableLayers;

        Side(String name, long incarnation, int contextRowCount) {
            KvGeometry geometry = Geometries.of("m");
            Region region = transfer.register(MemorySegment.ofArray(new byte[1024]), Region.NOT_SHAREABLE);
            messenger = new Messenger(
                    new MessengerIdentity(name, incarnation, new byte[0]),
                    geometry,
                    List.of(new RankMemory(List.of(region))),
                    contextRows(transfer, contextRowCount),
                    LIMITS,
                    new Messenger.Ports(
                            transfer,
                            wire,
                            this,
                            this,
                            this,
                            new SilentTally(),
                            () -> nowNs,
                            new SplittableRandom(incarnation)));
        }

        @Override
        public void released(String request) {
            told.add("released " + request);
        }

        @Override
        public void granted(String request, int promptTokens, int firstToken) {
            told.add("granted " + request + " [" + firstToken + ", " + promptTokens + ")");
        }

        @Override
        public void stopped(String request, String reason) {
            told.add("stopped " + request);
        }

        @Override
        public void arrived(String request, int pageCount) {
            told.add("arrived " + request);
        }

        @Override
        public void quarantined(String request, String reason) {
            told.add("quarantined " + request);
        }

        @Override
        public void failed(String request, String reason) {
            told.add("failed " + request);
        }

        @Override
        public void timeline(PrefillTimeline timeline) {}

        @Override
        public void timeline(FetchTimeline timeline) {}

        @Override
        public void log(Level level, String message) {}

        @Override
        public boolean available() {
            return true;
        }

        @Override
        public void enqueue(String transferId, int[] promptTokenIds) {
            enqueued.add(transferId);
        }

        @Override
        public void stepBegan(long stepIndex, long counterStart) {}

        @Override
        public int readableLayerCount() {
            return readableLayers;
        }

        @Override
        public void stepEnded(long stepIndex) {
            readableLayers = 0;
        }

        @Override
        public void stepAbandoned() {
            readableLayers = 0;
        }
    }

    @BeforeEach
    void connect() {
        fetch("warm-up", 1, 0);
        prefiller.messenger.onLinkOpened(Wire.DIALLED_LINK, true, "there:1");
        decoder.messenger.onLinkOpened(Wire.DIALLED_LINK, false, "host:7");
        carry();
        decoder.messenger.onCommand(new EngineCommand.Abandon("warm-up"));
        carry();
        assertThat(decoder.told).containsExactly("failed warm-up");
        decoder.told.clear();
    }

    private void carry() {
        do {
            prefiller.messenger.doWork();
            decoder.messenger.doWork();
            prefiller.wire.take().forEach(f -> decoder.messenger.onFrame(Wire.DIALLED_LINK, f));
            decoder.wire.take().forEach(f -> prefiller.messenger.onFrame(Wire.DIALLED_LINK, f));
        } while (!prefiller.wire.sent.isEmpty() || !decoder.wire.sent.isEmpty());
    }

    private void fetch(String request, int firstPage, long limitNs) {
        fetch(request, firstPage, limitNs, new int[0]);
    }

    private void fetch(String request, int firstPage, long limitNs, int[] tokens) {
        decoder.messenger.onCommand(new EngineCommand.Fetch(
                request,
                "t-" + request,
                "host",
                7,
                "",
                PROMPT_TOKENS,
                0,
                new int[] {firstPage, firstPage + 1},
                limitNs,
                tokens));
    }

    /** One forward pass over the whole prompt. */
    private void compute(String request, int cachedTokens) {
        prefiller.messenger.onCommand(new EngineCommand.Step(
                1,
                0,
                List.of(new EngineCommand.Chunk(
                        request, "t-" + request, PROMPT_TOKENS, cachedTokens, cachedTokens, PROMPT_TOKENS, new int[] {
                            5, 6
                        }))));
        prefiller.messenger.onCommand(new EngineCommand.StepEnded(1));
    }

    private void completeOneWrite() {
        long cookie = prefiller.transfer.submitted.removeFirst();
        prefiller.transfer.completions.add(handler -> handler.onWriteCompleted(cookie));
        prefiller.messenger.doWork();
    }

    @Test
    void shouldKeepPagesUntilCancelIsConfirmed() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        decoder.messenger.onCommand(new EngineCommand.Abandon("r"));
        carry();
        assertThat(decoder.told).isEmpty();
        assertThat(decoder.messenger.held().quarantinedPages()).isEqualTo(2);

        while (!prefiller.transfer.submitted.isEmpty()) {
            assertThat(decoder.told).isEmpty();
            completeOneWrite();
            carry();
        }
        assertThat(decoder.told).containsExactly("failed r");
    }

    @Test
    void shouldDeclineAllGrantsWhenItShutsDown() {
        fetch("r", 1, 0);
        carry();
        CompletableFuture<Void> drained = drain(prefiller);
        assertThat(reasons()).containsExactly(CannotDeliver.Reason.SHUTTING_DOWN);
        carry();
        assertThat(decoder.told).containsExactly("failed r");
        assertThat(drained).isDone();

        fetch("s", 1, 0);
        decoder.wire.take().forEach(f -> prefiller.messenger.onFrame(Wire.DIALLED_LINK, f));
        assertThat(reasons()).containsExactly(CannotDeliver.Reason.SHUTTING_DOWN);
        carry();
        assertThat(decoder.told).containsExactly("failed r", "failed s");
    }

    @Test
    void shouldLetLeaveWhatIsComputedWhenItShutsDown() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        CompletableFuture<Void> drained = drain(prefiller);
        while (!prefiller.transfer.submitted.isEmpty()) {
            assertThat(drained).isNotDone();
            completeOneWrite();
        }
        prefiller.messenger.doWork();
        assertThat(drained).isDone();
        assertThat(prefiller.wire.sent).isEmpty();
    }

    @Test
    void shouldStopWhatIsNotComputedWhenItShutsDownOnceItsWritesHaveEnded() {
        fetch("r", 1, 0);
        carry();
        prefiller.messenger.onCommand(new EngineCommand.Step(
                1,
                0,
                List.of(new EngineCommand.Chunk(
                        "r", "t-r", PROMPT_TOKENS, 0, 0, Geometries.PAGE_TOKENS, new int[] {5}))));
        prefiller.messenger.onCommand(new EngineCommand.StepEnded(1));
        assertThat(prefiller.transfer.submitted).isNotEmpty();
        CompletableFuture<Void> drained = drain(prefiller);
        while (!prefiller.transfer.submitted.isEmpty()) {
            assertThat(prefiller.wire.sent).isEmpty();
            assertThat(drained).isNotDone();
            completeOneWrite();
        }
        prefiller.messenger.doWork();
        assertThat(reasons()).containsExactly(CannotDeliver.Reason.SHUTTING_DOWN);
        assertThat(drained).isDone();
    }

    @Test
    void shouldCancelItsFetchesWhenTheDecoderShutsDown() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        CompletableFuture<Void> drained = drain(decoder);
        carry();
        while (!prefiller.transfer.submitted.isEmpty()) {
            assertThat(drained).isNotDone();
            completeOneWrite();
            carry();
        }
        assertThat(decoder.told).containsExactly("failed r");
        decoder.messenger.doWork();
        assertThat(drained).isDone();
    }

    private static CompletableFuture<Void> drain(Side side) {
        CompletableFuture<Void> drained = new CompletableFuture<>();
        side.messenger.drain("going", drained);
        side.messenger.doWork();
        return drained;
    }

    /** Of what the prefiller has said and nobody has carried yet. */
    private List<CannotDeliver.Reason> reasons() {
        return prefiller.wire.sent.stream()
                .filter(ControlFrame::hasCannotDeliver)
                .map(frame -> frame.getCannotDeliver().getReason())
                .toList();
    }

    @Test
    void shouldNotConfirmACancelThatCrossesAPreemptionWithWritesInFlight() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        CompletableFuture<Void> fenced = new CompletableFuture<>();
        prefiller.messenger.onCommand(new EngineCommand.Preempt(List.of("r"), fenced));
        decoder.messenger.onCommand(new EngineCommand.Abandon("r"));
        carry();
        assertThat(decoder.told).isEmpty();
        assertThat(fenced).isNotDone();

        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();
        assertThat(fenced).isDone();
        assertThat(decoder.told).containsExactly("failed r");
    }

    @Test
    void shouldKeepASecondFenceWaitingForTheSameWrites() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        prefiller.messenger.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        CompletableFuture<Void> again = new CompletableFuture<>();
        prefiller.messenger.onCommand(new EngineCommand.Preempt(List.of("r"), again));
        assertThat(again).isNotDone();

        while (!prefiller.transfer.submitted.isEmpty()) {
            assertThat(again).isNotDone();
            completeOneWrite();
        }
        assertThat(again).isDone();
    }

    @Test
    void shouldNotAnswerForAWriteThatFailed() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        for (long cookie : prefiller.transfer.submitted) {
            prefiller.transfer.completions.add(
                    handler -> handler.onWriteFailed(cookie, TransferFault.PEER_CLOSED, "the path broke"));
        }
        prefiller.messenger.doWork();

        assertThat(prefiller.wire.take()).noneMatch(ControlFrame::hasCannotDeliver);
        assertThat(prefiller.wire.closed).isTrue();
        decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "closed by the peer");
        assertThat(decoder.told).containsExactly("quarantined r");
        assertThat(decoder.messenger.held().quarantinedPages()).isEqualTo(2);
        decoder.transfer.completions.add(
                handler -> handler.onAdmissionClosed(decoder.transfer.revoked.getFirst(), "revoked"));
        decoder.messenger.doWork();
        assertThat(decoder.told).containsExactly("quarantined r", "failed r");
    }

    @Test
    void shouldSendCachedPagesWhenTheGrantCameFirst() {
        fetch("r", 1, 0);
        carry();
        compute("r", Geometries.PAGE_TOKENS);

        assertThat(prefiller.transfer.submitted).isNotEmpty();
    }

    @Test
    void shouldEnqueueADecoderFirstPromptOnceAlsoWhenItIsPreempted() {
        fetch("r", 1, 0, new int[PROMPT_TOKENS]);
        carry();
        prefiller.messenger.onCommand(new EngineCommand.Step(
                1, 0, List.of(new EngineCommand.Chunk("r", "t-r", PROMPT_TOKENS, 0, 0, 1, new int[] {5}))));
        prefiller.messenger.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        carry();

        assertThat(prefiller.enqueued).containsExactly("t-r");
        assertThat(prefiller.messenger.held().grantsWaiting()).isEqualTo(1);
    }

    @Test
    void shouldEndAFetchOnceWhenItsSessionEndsInTheSameTurn() {
        decoder.transfer.freeSlots = 1;
        fetch("granted", 1, 0);
        fetch("waiting", 3, LIMITS.silenceLimitNs());
        decoder.messenger.onCommand(new EngineCommand.Abandon("granted"));
        nowNs += LIMITS.silenceLimitNs();
        decoder.messenger.doWork();

        assertThat(decoder.told).containsExactlyInAnyOrder("failed waiting", "quarantined granted");
    }

    @Test
    void shouldNotWaitForAGrantWhenTheCancelCrossedThePreemption() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        prefiller.messenger.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        decoder.messenger.onCommand(new EngineCommand.Abandon("r"));
        carry();
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();

        compute("r", 0);
        prefiller.messenger.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));
        assertThat(prefiller.told).containsExactly("released r");
    }

    @Test
    void shouldNotWaitForAGrantWhenTheCancelCrossedTheWordOfThePreemption() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        prefiller.messenger.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite(); // its word is on the wire when the cancel leaves
        }
        decoder.messenger.onCommand(new EngineCommand.Abandon("r"));
        compute("r", 0);
        carry();

        prefiller.messenger.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));
        assertThat(prefiller.told).containsExactly("released r");
        assertThat(decoder.told).containsExactly("failed r");
    }

    @Test
    void shouldGrantAgainAfterAPreemption() {
        fetch("r", 1, 0);
        carry();
        decoder.messenger.onFrame(
                Wire.DIALLED_LINK,
                ControlFrame.newBuilder()
                        .setCannotDeliver(CannotDeliver.newBuilder()
                                .setTransferId("t-r")
                                .setImm(2 << 20)
                                .setReason(CannotDeliver.Reason.PREEMPTED))
                        .build());

        assertThat(decoder.wire.take()).singleElement().matches(ControlFrame::hasGrant);
    }

    private void announce(String request) {
        prefiller.messenger.onCommand(new EngineCommand.Announce(request, "t-" + request));
    }

    /** The engine says that tokens up to {@code endToken} are in place, outside of any forward pass. */
    private void tellComputed(String request, int promptTokens, int endToken, int... newPages) {
        prefiller.messenger.onCommand(new EngineCommand.Computed(
                new EngineCommand.Chunk(request, "t-" + request, promptTokens, 0, 0, endToken, newPages)));
    }

    @Test
    void shouldTellTheGrantOfAnAnnouncedPromptWhicheverComesFirst() {
        announce("early");
        fetch("early", 1, 0);
        fetch("late", 3, 0);
        carry();
        announce("late");

        assertThat(prefiller.told)
                .containsExactly("granted early [0, " + PROMPT_TOKENS + ")", "granted late [0, " + PROMPT_TOKENS + ")");
    }

    @Test
    void shouldSendWhatIsComputedOutsideOfSteps() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        tellComputed("r", PROMPT_TOKENS, Geometries.PAGE_TOKENS, 5);
        int firstPage = prefiller.transfer.submitted.size();
        tellComputed("r", PROMPT_TOKENS, PROMPT_TOKENS, 6);
        prefiller.messenger.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));

        assertThat(firstPage).isPositive();
        assertThat(prefiller.transfer.submitted).hasSize(2 * firstPage);
        while (!prefiller.transfer.submitted.isEmpty()) {
            assertThat(prefiller.told).doesNotContain("released r");
            completeOneWrite();
        }
        assertThat(prefiller.told).endsWith("released r").doesNotContain("stopped r");
    }

    @Test
    void shouldDeclineTheGrantOfAnAnnouncedPromptThatNeverBegins() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        prefiller.messenger.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.ABORTED));
        carry();

        assertThat(decoder.told).containsExactly("failed r");
        assertThat(prefiller.told).endsWith("released r");
        assertThat(prefiller.messenger.held().prefills()).isZero();
    }

    @Test
    void shouldTellThatAnAnnouncedPromptWasCancelled() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        decoder.messenger.onCommand(new EngineCommand.Abandon("r"));
        carry();

        assertThat(prefiller.told).endsWith("stopped r");
        assertThat(decoder.told).containsExactly("failed r");
    }

    @Test
    void shouldStopAnAnnouncedPromptThatTurnsOutToBeAnother() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        tellComputed("r", PROMPT_TOKENS + 1, Geometries.PAGE_TOKENS, 5);
        carry();

        assertThat(prefiller.transfer.submitted).isEmpty();
        assertThat(prefiller.told).endsWith("stopped r");
        assertThat(decoder.told).containsExactly("failed r");
    }

    private static List<ContextRow> contextRows(RecordingTransferEngine transfer, int slotCount) {
        if (slotCount == 0) {
            return List.of();
        }
        return List.of(
                new ContextRow(
                        "token",
                        transfer.register(MemorySegment.ofArray(new byte[64 * slotCount]), -1),
                        64,
                        8,
                        slotCount),
                new ContextRow(
                        "room",
                        transfer.register(MemorySegment.ofArray(new byte[64 * slotCount]), -1),
                        64,
                        64,
                        slotCount));
    }

    private void connectWithContext(int prefillerSlots, int decoderSlots) {
        prefiller = new Side("prefiller", 1, prefillerSlots);
        decoder = new Side("decoder", 2, decoderSlots);
        fetchWithContext("warm-up", 0, 1);
        prefiller.messenger.onLinkOpened(Wire.DIALLED_LINK, true, "there:1");
        decoder.messenger.onLinkOpened(Wire.DIALLED_LINK, false, "host:7");
        carry();
        decoder.messenger.onCommand(new EngineCommand.Abandon("warm-up"));
        carry();
        decoder.told.clear();
    }

    private void fetchWithContext(String request, int contextSlot, int... pages) {
        decoder.messenger.onCommand(new EngineCommand.Fetch(
                request,
                "t-" + request,
                "host",
                7,
                "",
                PROMPT_TOKENS,
                PROMPT_TOKENS - pages.length * Geometries.PAGE_TOKENS,
                pages,
                contextSlot,
                0,
                new int[0]));
    }

    private void end(String request, EngineCommand.PrefillOutcome outcome, int contextSlot) {
        prefiller.messenger.onCommand(new EngineCommand.PrefillEnded(request, outcome, contextSlot));
    }

    @Test
    void shouldSendContextRowsWhenAllKvHasLeftAndTheEngineHasEndedTheRequest() {
        connectWithContext(4, 8);
        fetchWithContext("r", 7, 1, 2);
        carry();
        compute("r", 0);
        completeOneWrite();
        end("r", EngineCommand.PrefillOutcome.FINISHED, 3);
        int kvWrites = prefiller.transfer.submitted.size();
        for (int i = 0; i < kvWrites; i++) {
            assertThat(prefiller.transfer.submitted).hasSize(kvWrites - i);
            completeOneWrite();
        }
        assertThat(prefiller.transfer.submitted).hasSize(2);
        assertThat(prefiller.told).doesNotContain("released r");
        completeOneWrite();
        completeOneWrite();

        assertThat(prefiller.told).endsWith("released r");
        assertThat(prefiller.messenger.held().writesInFlight()).isZero();
    }

    @Test
    void shouldSendNoContextRowOfARequestThatIsAborted() {
        connectWithContext(4, 8);
        fetchWithContext("r", 7, 1, 2);
        carry();
        compute("r", 0);
        end("r", EngineCommand.PrefillOutcome.ABORTED, -1);
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();

        assertThat(prefiller.told).endsWith("released r");
        assertThat(decoder.told).containsExactly("failed r");
    }

    @Test
    void shouldSendContextRowsAloneWhenTheDecoderHasAllPages() {
        connectWithContext(4, 8);
        fetchWithContext("r", 0);
        carry();
        compute("r", 0);
        assertThat(prefiller.transfer.submitted).isEmpty();
        end("r", EngineCommand.PrefillOutcome.FINISHED, 0);

        assertThat(prefiller.transfer.submitted).hasSize(2);
    }

    @Test
    void shouldRefuseAGrantWhoseContextRowsAreOthers() {
        connectWithContext(0, 8);
        fetchWithContext("r", 7, 1, 2);
        carry();

        assertThat(decoder.told).containsExactly("failed r");
    }

    @Test
    void shouldFailAFetchWhoseContextSlotIsNone() {
        connectWithContext(4, 8);
        fetchWithContext("r", 8, 1, 2);

        assertThat(decoder.told).containsExactly("failed r");
    }
}
