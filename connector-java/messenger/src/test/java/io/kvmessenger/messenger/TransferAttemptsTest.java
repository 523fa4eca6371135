package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;

/** Ids that are used again, requests that queue for long, and answers to an attempt that has ended. */
class TransferAttemptsTest extends MessengerPair {
    private static final TransferKey TRANSFER = new TransferKey("t-r", "");
    private static final long LONG_NS = 1_000_000;
    private static final List<PrefillerAddress> PREFILLER = List.of(new PrefillerAddress("host", 7, ""));

    /** Lets time pass in steps that keep the session alive. */
    private void pass(long ns) {
        for (long passed = 0; passed < ns; passed += LIMITS.heartbeatNs() / 2) {
            nowNs += Math.min(LIMITS.heartbeatNs() / 2, ns - passed);
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

    private void fillNewestWindow() {
        long cookie = decoder.transfer.windowCookies.getLast();
        decoder.transfer.completions.add(handler -> handler.onWindowFilled(cookie));
        decoder.messenger.doWork();
    }

    private void transferOnce(String request) {
        fetch(request, 1, LONG_NS);
        carry();
        finish(request);
        completeAllWrites();
        fillNewestWindow();
    }

    @Test
    void shouldServeATransferIdAgainWhicheverSideIsFirst() {
        transferOnce("r");
        transferOnce("r");
        finish("r"); // the prefiller's leg first
        assertThat(prefiller.reported).containsExactly("released r", "released r");
        fetch("r", 1, LONG_NS);
        carry();
        completeAllWrites();
        fillNewestWindow();

        assertThat(decoder.reported).containsExactly("arrived r", "arrived r", "arrived r");
        assertThat(prefiller.reported).containsExactly("released r", "released r", "released r");
    }

    @Test
    void shouldSayHowTheEarlierTransferEndedWhenNoSecondOneComes() {
        transferOnce("r");
        fetch("r", 1, LONG_NS);
        pass(LIMITS.grantWaitNs() - LIMITS.heartbeatNs());
        assertThat(decoder.reported).containsExactly("arrived r");
        pass(2 * LIMITS.heartbeatNs());

        assertThat(decoder.reported).containsExactly("arrived r", "failed r");
        assertThat(decoder.lastFailure).contains("grant_wait_seconds", "an earlier one with that id: it was sent");
    }

    @Test
    void shouldLetAGrantWaitForASecondLifeWhileTheFirstIsNotEndedYet() {
        announce("r");
        fetch("r", 1, LONG_NS);
        carry();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        carry();
        fetch(
                "r", 1,
                LONG_NS); // a decoder that retracts asks under the same id before the prefiller's engine has ended it
        carry();
        end("r", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        finish("r");
        completeAllWrites();
        fillNewestWindow();

        assertThat(decoder.reported).containsExactly("failed r", "arrived r");
    }

    @Test
    void shouldKeepAGrantOfAQueuedRequestBeyondItsLimit() {
        announce("r");
        fetch("r", 1, LONG_NS);
        pass(3 * LIMITS.grantWaitNs());
        finish("r");
        completeAllWrites();

        assertThat(decoder.reported).isEmpty();
        assertThat(prefiller.reported).endsWith("released r");
        assertThat(prefiller.cache.held().prefills()).isZero();
    }

    @Test
    void shouldKeepAFinishedPrefillThatADecoderExpectsBeyondItsLimit() {
        decoder.cache.onCommand(new EngineCommand.Expect(TRANSFER, PREFILLER));
        carry();
        finish("r");
        pass(3 * LIMITS.grantWaitNs());
        assertThat(prefiller.reported).isEmpty();
        fetch("r", 1, LONG_NS);
        carry();
        completeAllWrites();

        assertThat(prefiller.reported).containsExactly("released r");
        assertThat(decoder.reported).containsExactly("prefilled t-r");
    }

    private void expect(String request) {
        decoder.cache.onCommand(new EngineCommand.Expect(new TransferKey("t-" + request, ""), PREFILLER));
        carry();
    }

    @Test
    void shouldNotifyADecoderThatExpectsAPromptWhenItIsComputed() {
        expect("r");
        announce("r");
        compute("r", 0);
        carry();
        assertThat(decoder.reported).isEmpty(); // computed, and the engine may still preempt it
        end("r", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        carry();
        expect("given up");
        announce("given up");
        end("given up", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        carry();

        assertThat(decoder.reported).containsExactly("prefilled t-r", "prefilled t-given up");
    }

    @Test
    void shouldNotifyADecoderAtOnceThatExpectsAPromptThatIsComputedOrOver() {
        finish("r");
        expect("r");
        announce("aborted");
        end("aborted", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        carry();
        assertThat(prefiller.reported).contains("released aborted");
        expect("aborted");
        expect("never seen");

        assertThat(decoder.reported).containsExactly("prefilled t-r", "prefilled t-aborted");
    }

    @Test
    void shouldNotifyADecoderOnceThatExpectsAPromptThatDoesNotComeInTime() {
        expect("never");
        expect("queued");
        announce("queued");
        expect("declined");
        decoder.cache.onCommand(new EngineCommand.Decline(new TransferKey("t-declined", ""), PREFILLER));
        pass(LIMITS.grantWaitNs() - 1);
        assertThat(decoder.reported).isEmpty();
        pass(1);
        assertThat(decoder.reported).containsExactly("prefilled t-never");
        pass(3 * LIMITS.grantWaitNs());
        assertThat(decoder.reported).hasSize(1);

        fetch("never", 1, 100 * LIMITS.grantWaitNs()); // it is granted like any other, and its prefill may still come
        finish("never");
        completeAllWrites();
        assertThat(prefiller.reported).contains("released never");
    }

    @Test
    void shouldNotifyADecoderOfTheEndOfAPrefillerOnceForEachTransferThatItExpects() {
        expect("r");
        expect("declined");
        decoder.cache.onCommand(new EngineCommand.Decline(new TransferKey("t-declined", ""), PREFILLER));
        expect("fetched");
        fetch("fetched", 1, LONG_NS);
        carry();
        decoder.reported.clear();
        decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");

        assertThat(decoder.reported)
                .contains("prefilled t-r")
                .doesNotContain("prefilled t-declined", "prefilled t-fetched");
    }

    @Test
    void shouldReleaseAnExpectedPrefillThatIsDeclined() {
        decoder.cache.onCommand(new EngineCommand.Expect(TRANSFER, PREFILLER));
        carry();
        finish("r");
        decoder.cache.onCommand(new EngineCommand.Decline(TRANSFER, PREFILLER));
        carry();

        assertThat(prefiller.reported).containsExactly("released r");
    }

    @Test
    void shouldKeepAnExpectedPrefillForOneLimitMoreWhenTheSessionEnds() {
        decoder.cache.onCommand(new EngineCommand.Expect(TRANSFER, PREFILLER));
        carry();
        finish("r");
        pass(3 * LIMITS.grantWaitNs());
        prefiller.messenger.onLinkClosed(Wire.DIALLED_LINK, "the link broke");
        nowNs += LIMITS.grantWaitNs() - 1;
        prefiller.messenger.doWork();
        assertThat(prefiller.reported).isEmpty();
        nowNs += 1;
        prefiller.messenger.doWork();

        assertThat(prefiller.reported).containsExactly("released r");
    }

    @Test
    void shouldHoldNoPagesForADecoderWhoseGrantWaitedInVain() {
        fetch("r", 1, LONG_NS);
        pass(LIMITS.grantWaitNs() + LIMITS.heartbeatNs());
        assertThat(decoder.reported).containsExactly("failed r");
        finish("r");

        assertThat(prefiller.reported).containsExactly("released r");
    }

    @Test
    void shouldForgetADeclineWhenItsTimeIsOver() {
        decoder.cache.onCommand(new EngineCommand.Decline(TRANSFER, PREFILLER));
        pass(LIMITS.grantWaitNs() + LIMITS.heartbeatNs());
        finish("r");
        assertThat(prefiller.reported).isEmpty();
        fetch("r", 1, LONG_NS);
        carry();
        completeAllWrites();

        assertThat(prefiller.reported).containsExactly("released r");
    }

    @Test
    void shouldTakeADeclineForTheLifeThatIsOverWhenThatLifeWasOwedOne() {
        finish("r");
        pass(LIMITS.grantWaitNs() + LIMITS.heartbeatNs());
        assertThat(prefiller.reported).containsExactly("released r");
        decoder.cache.onCommand(new EngineCommand.Decline(TRANSFER, PREFILLER));
        carry();
        finish("r");
        assertThat(prefiller.reported).containsExactly("released r");
        fetch("r", 1, LONG_NS);
        carry();
        completeAllWrites();

        assertThat(prefiller.reported).containsExactly("released r", "released r");
    }

    @Test
    void shouldTakeADeclineForTheNextLifeWhenTheLastHadItsWord() {
        transferOnce("r");
        decoder.cache.onCommand(new EngineCommand.Decline(TRANSFER, PREFILLER));
        carry();
        finish("r");

        assertThat(prefiller.reported).containsExactly("released r", "released r");
    }

    @Test
    void shouldServeAGrantThatFollowsADecline() {
        decoder.cache.onCommand(new EngineCommand.Decline(TRANSFER, PREFILLER));
        carry();
        compute("r", 0);
        fetch("r", 1, LONG_NS);
        carry();
        end("r", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        completeAllWrites();
        fillNewestWindow();

        assertThat(decoder.reported).containsExactly("arrived r");
        assertThat(prefiller.reported).containsExactly("released r");
    }

    @Test
    void shouldBringADecoderFirstPromptAgainWhenItsTransferIsOver() {
        fetch("r", 1, LONG_NS, new int[PROMPT_TOKENS]);
        carry();
        finish("r");
        completeAllWrites();
        fillNewestWindow();
        fetch("r", 1, LONG_NS, new int[PROMPT_TOKENS]);
        carry();

        assertThat(prefiller.enqueued).containsExactly("t-r", "t-r");
    }

    @Test
    void shouldNotifyTheDecoderWhenAnAnnouncedRequestEndsWhileItIsPreempted() {
        announce("r");
        fetch("r", 1, LONG_NS);
        carry();
        beginPass("r");
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        completeAllWrites();
        pass(2 * LIMITS.grantWaitNs());
        assertThat(decoder.reported).isEmpty();
        assertThat(prefiller.reported).doesNotContain("stopped r");
        end("r", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        carry();

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(prefiller.reported).endsWith("stopped r", "released r");
        assertThat(prefiller.cache.held().prefills()).isZero();
    }

    @Test
    void shouldStopAnAnnouncedRequestWhoseIdIsTaken() {
        announce("r");
        prefiller.cache.onCommand(new EngineCommand.Announce("second", "t-r"));

        assertThat(prefiller.reported).containsExactly("stopped second");
    }

    @Test
    void shouldNotifyADecoderAtOnceWhoseGrantWasOnItsWayWhenTheEngineGaveThePromptUp() {
        announce("r");
        end("r", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        fetch("r", 1, LONG_NS);
        carry();

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("ABORTED");

        fetch("r", 1, LONG_NS);
        carry();
        finish("r");
        completeAllWrites();
        fillNewestWindow();
        assertThat(decoder.reported).as("a later request with that id").containsExactly("failed r", "arrived r");
    }

    @Test
    void shouldNotifyADecoderAtOnceThatAPreemptedPromptIsNotComputedAgain() {
        fetch("r", 1, LONG_NS);
        carry();
        beginStep(new EngineCommand.Chunk("r", "t-r", PROMPT_TOKENS, 0, 0, 1, 0, new int[] {5}));
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        end("r", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        carry();

        assertThat(prefiller.reported).containsExactly("released r");
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("ABORTED");
    }
}
