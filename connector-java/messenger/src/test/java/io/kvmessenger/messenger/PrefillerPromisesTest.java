package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.Chunk;
import io.kvmessenger.messenger.port.EngineCommand.ChunkPages;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.FetchFailure;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.PrefillFailure;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Decline;
import io.kvmessenger.messenger.wire.PromptWire;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.TransferFault;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;

/** What a prefiller's engine and its decoders rely on, one promise a test. */
class PrefillerPromisesTest extends MessengerPair {
    private static final List<PrefillerAddress> PREFILLER = List.of(new PrefillerAddress("host", 7, ""));
    private static final TransferKey TRANSFER = new TransferKey("t-r", "");
    private static final int[] TOKENS = {1, 2, 3};
    private static final long LONG_NS = 1_000_000;

    private void pass(long ns) {
        long step = LIMITS.heartbeatNs() / 2;
        for (long passed = 0; passed < ns; passed += step) {
            nowNs += Math.min(step, ns - passed);
            carry();
        }
    }

    private void finish(String request) {
        compute(request, 0);
        end(request, PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        carry();
    }

    private void completeAllWrites() {
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();
    }

    private void lastTokenAgain(String request) {
        beginStep(new Chunk(
                request,
                "t-" + request,
                PROMPT_TOKENS,
                PROMPT_TOKENS - 1,
                PROMPT_TOKENS - 1,
                PROMPT_TOKENS,
                List.of(new ChunkPages(0, new int[] {5, 6})),
                ""));
    }

    // ---- ends

    /** As an engine that comes to rest for other weights does, where no decoder has asked for the KV. */
    @Test
    void shouldLetGoOfAFinishedPromptThatTheEngineEndsOnceMore() {
        finish("r");
        assertThat(prefiller.reported).doesNotContain("released r");

        end("r", PrefillOutcome.FAILED, ContextSlots.NO_SLOT);
        carry();
        assertThat(prefiller.reported).contains("released r");

        fetch("r", 1, LONG_NS);
        carry();
        assertThat(decoder.reported).contains("failed r");
    }

    // ---- writes

    @Test
    void shouldEndTheSessionInsteadOfAnsweringForAWriteThatFailed() {
        fetch("r", 1, LONG_NS);
        carry();
        compute("r", 0);
        long failed = prefiller.transfer.submitted.removeFirst();
        prefiller.transfer.completions.add(
                handler -> handler.onWriteFailed(failed, TransferFault.DISCONNECTED, "reset"));
        prefiller.messenger.doWork();
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }

        assertThat(prefiller.wire.sent)
                .anyMatch(ControlFrame::hasGoodbye)
                .noneMatch(ControlFrame::hasCannotDeliver)
                .noneMatch(ControlFrame::hasCancelConfirmed);
    }

    @Test
    void shouldSendRowsThatTheTransferEngineCouldNotTakeAtFirst() {
        prefiller = new Side("prefiller", 1, 4);
        decoder = new Side("decoder", 2, 4);
        fetch("warm-up", 0, List.of(), 1);
        meet();
        fetch("r", 0, List.of(), 1, 2);
        carry();
        compute("r", 0);
        completeAllWrites();
        prefiller.messenger.doWork();
        prefiller.transfer.backPressured = 1;
        end("r", PrefillOutcome.FINISHED, 0);
        assertThat(prefiller.transfer.submitted).isEmpty();
        prefiller.messenger.doWork();
        assertThat(prefiller.transfer.submitted)
                .as("the rows leave late, and leave")
                .isNotEmpty();
        completeAllWrites();

        assertThat(prefiller.reported).contains("released r");
    }

    // ---- passes

    @Test
    void shouldNotWatchThePassThatAPromptWasPreemptedOutOf() {
        fetch("r", 1, LONG_NS);
        carry();
        compute("r", 0);
        completeAllWrites();
        lastTokenAgain("r");
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));

        assertThat(prefiller.messenger.watching())
                .as("its layers are another attempt's")
                .isFalse();
    }

    @Test
    void shouldNotWatchThePassesOfAPromptOfWhichOneHasFailed() {
        fetch("r", 1, LONG_NS);
        carry();
        compute("r", 0);
        completeAllWrites();
        lastTokenAgain("r");
        long first = lastStep;
        lastTokenAgain("r");
        prefiller.cache.onCommand(new EngineCommand.StepFailed(first));

        assertThat(prefiller.messenger.watching())
                .as("nothing of it is sent any more")
                .isFalse();
    }

    @Test
    void shouldCostNothingWhileAPromptWhosePassFailedWaitsForItsEngine() {
        beginPass("r");
        prefiller.cache.onCommand(new EngineCommand.StepFailed(lastStep));
        carry();
        carry();
        long before = prefiller.cache.visits();
        for (int cycle = 0; cycle < 100; cycle++) {
            assertThat(prefiller.messenger.doWork()).isZero();
        }

        assertThat(prefiller.cache.visits()).isEqualTo(before);
    }

    @Test
    void shouldRestWhileAPromptHasNothingToSend() {
        announce("queued");
        fetch("granted", 1, LONG_NS);
        announce("granted");
        carry();
        carry();
        long before = prefiller.cache.visits();
        assertThat(prefiller.messenger.doWork()).as("a messenger that spins").isZero();
        assertThat(prefiller.cache.visits()).isEqualTo(before);
        assertThat(prefiller.messenger.watching()).isFalse();
    }

    // ---- prompts that decoders bring

    @Test
    void shouldEnqueueAPromptAgainThatNeverCameOnce() {
        fetch("r", 1, LONG_NS, TOKENS);
        carry();
        pass(LIMITS.grantWaitNs());
        assertThat(decoder.reported).containsExactly("failed r");
        fetch("r", 1, LONG_NS, TOKENS);
        carry();

        assertThat(prefiller.enqueued).containsExactly("t-r", "t-r");
    }

    @Test
    void shouldSayWhatToSetWhereAPromptIsBroughtThatTheEngineCannotBeAskedFor() {
        prefiller.withoutIntake = true;
        fetch("r", 1, LONG_NS, TOKENS);
        carry();

        assertThat(decoder.lastFailure)
                .contains("came to the decoder only")
                .endsWith("set engine_api_url on the prefiller");
        assertThat(prefiller.enqueued).isEmpty();
        assertThat(prefiller.cache.held().grantsWaiting()).isZero();
    }

    @Test
    void shouldEnqueueAPromptAgainThatTheEngineRefusedOnce() {
        fetch("r", 1, LONG_NS, TOKENS);
        carry();
        prefiller.cache.onEnqueueFailed(TRANSFER, "full");
        carry();
        assertThat(decoder.lastFailure).contains("full");
        fetch("r", 1, LONG_NS, TOKENS);
        carry();

        assertThat(prefiller.enqueued).containsExactly("t-r", "t-r");
    }

    @Test
    void shouldEnqueueAPromptAgainThatHasBeenServed() {
        fetch("r", 1, LONG_NS, TOKENS);
        carry();
        finish("r");
        completeAllWrites();
        decoder.transfer.reportFilled();
        carry();
        assertThat(decoder.reported).containsExactly("arrived r");
        fetch("r", 1, LONG_NS, TOKENS);
        carry();

        assertThat(prefiller.enqueued).containsExactly("t-r", "t-r");
    }

    @Test
    void shouldEnqueueNothingInAnEngineThatEnds() {
        prefiller.messenger.drain("going", new CompletableFuture<>());
        fetch("r", 1, LONG_NS, TOKENS);
        carry();

        Decline beside = Decline.newBuilder()
                .setTransferId("t-s")
                .setPrompt(PromptWire.encode(new EngineCommand.Prompt(TOKENS, "", 0)))
                .build();
        prefiller.messenger.onFrame(
                Wire.DIALLED_LINK, ControlFrame.newBuilder().setDecline(beside).build());

        assertThat(prefiller.enqueued).isEmpty();
        assertThat(decoder.tally.sum(FetchFailure.PREFILLER_STOPPING)).isEqualTo(1);
    }

    // ---- limits and reasons

    private void reject() {
        decoder.cache.onCommand(new EngineCommand.Reject("t-r", PREFILLER));
        carry();
    }

    @Test
    void shouldCountAPromptThatWasRejectedAsUnwantedAndNotAsExpired() {
        finish("r");
        reject();
        pass(LIMITS.rejectedWaitNs());

        assertThat(prefiller.reported).containsExactly("released r");
        assertThat(prefiller.tally.sum(PrefillFailure.UNWANTED)).isEqualTo(1);
        assertThat(prefiller.tally.sum(PrefillFailure.EXPIRED)).isZero();
    }

    @Test
    void shouldCountAPromptThatNoDecoderAsksForAsExpired() {
        finish("r");
        pass(LIMITS.grantWaitNs());

        assertThat(prefiller.tally.sum(PrefillFailure.EXPIRED)).isEqualTo(1);
        assertThat(prefiller.tally.sum(MessengerMetric.PREFILLS_EXPIRED)).isEqualTo(1);
    }

    @Test
    void shouldNotHoldPagesLongerBecauseARequestWasRejectedLate() {
        finish("r");
        pass(LIMITS.grantWaitNs() - LIMITS.rejectedWaitNs() / 2);
        reject();
        pass(LIMITS.rejectedWaitNs() / 2);

        assertThat(prefiller.reported).containsExactly("released r");
    }

    @Test
    void shouldNotShortenTheWaitOfAPromptThatADecoderExpectsOrHasAnswered() {
        decoder.cache.onCommand(new EngineCommand.Expect(TRANSFER, PREFILLER));
        carry();
        finish("r");
        reject();
        pass(4 * LIMITS.rejectedWaitNs());
        assertThat(prefiller.reported).isEmpty();
    }

    @Test
    void shouldWaitAsEverForAPromptThatADecoderAsksForAfterARejection() {
        reject();
        decoder.cache.onCommand(new EngineCommand.Expect(TRANSFER, PREFILLER));
        carry();
        decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");
        prefiller.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");
        compute("r", 0);
        end("r", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        nowNs += LIMITS.grantWaitNs() - 1;
        prefiller.messenger.doWork();
        assertThat(prefiller.reported).isEmpty();
        nowNs++;
        prefiller.messenger.doWork();

        assertThat(prefiller.reported).containsExactly("released r");
    }

    /** A decoder is told why, by the reason that it counts. */
    @Test
    void shouldSayOfAPromptThatWasGivenUpByALimitThatItHasExpired() {
        TransferKey another = new TransferKey("t-d", "bb");
        prefiller.cache.onCommand(new EngineCommand.Announce("p", another.id(), another.digest()));
        decoder.cache.onCommand(fetchOf("d", 1, LONG_NS, "aa", EngineCommand.Prompt.NONE));
        pass(2 * LIMITS.contradictionWaitNs() + LIMITS.heartbeatNs());
        assertThat(prefiller.reported).containsExactly("stopped p");
        assertThat(decoder.reported).containsExactly("failed d");
        fetch("d", 1, "bb");
        carry();

        assertThat(decoder.tally.sum(FetchFailure.EXPIRED)).isEqualTo(1);
    }

    // ---- its clock

    /** Between heartbeats too: the times of its duty cycles are those that it has asked for. */
    @Test
    void shouldWakeAtTheMomentThatEachLimitIsOver() {
        limits = new ProtocolLimits(1000, 4000, LONG_NS, LONG_NS, 5 * LONG_NS, 400, 0);
        List<Runnable> waits = List.of(
                () -> fetch("unheard", 1, LONG_NS),
                () -> decoder.cache.onCommand(new EngineCommand.Expect(new TransferKey("t-expected", ""), PREFILLER)),
                () -> finish("expires"),
                () -> {
                    prefiller.cache.onCommand(new EngineCommand.Announce("p", "t-contradicts", "bb"));
                    fetch("contradicts", 1, "aa");
                });
        List<Long> limitsNs = List.of(400L, 400L, 1000L, 400L);
        for (int i = 0; i < waits.size(); i++) {
            nowNs = 7;
            prefiller = new Side("prefiller", 1, 0);
            decoder = new Side("decoder", 2, 0);
            fetch("warm-up", 1, 0);
            meet();
            nowNs += 10;
            waits.get(i).run();
            carry();

            assertThat(prefiller.messenger.nextDeadlineNs()).as("wait %d", i).isEqualTo(nowNs + limitsNs.get(i));
        }
    }
}
