package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.TransferFault;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;

/** What each side may do with pages, whatever crosses on the way. */
class MessengerTest extends MessengerPair {
    @Test
    void shouldKeepPagesUntilCancelIsConfirmed() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        carry();
        assertThat(decoder.reported).isEmpty();
        assertThat(decoder.cache.held().quarantinedPages()).isEqualTo(2);

        while (!prefiller.transfer.submitted.isEmpty()) {
            assertThat(decoder.reported).isEmpty();
            completeOneWrite();
            carry();
        }
        assertThat(decoder.reported).containsExactly("failed r");
    }

    /** An event may be lost in the engine's process: without an answer, safe pages stay out of use for ever. */
    @Test
    void shouldReportAnEndAgainAndNotBeforeNothingCanWrite() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        decoder.cache.onCommand(new EngineCommand.ReportEnd("r"));
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        carry();
        while (!prefiller.transfer.submitted.isEmpty()) {
            decoder.cache.onCommand(new EngineCommand.ReportEnd("r"));
            assertThat(decoder.reported).isEmpty();
            completeOneWrite();
            carry();
        }
        assertThat(decoder.reported).containsExactly("failed r");
        decoder.cache.onCommand(new EngineCommand.ReportEnd("r"));
        assertThat(decoder.reported).containsExactly("failed r", "failed r");
    }

    @Test
    void shouldNotConfirmACancelThatCrossesAPreemptionWithWritesInFlight() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        CompletableFuture<Void> fenced = new CompletableFuture<>();
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), fenced));
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        carry();
        assertThat(decoder.reported).isEmpty();
        assertThat(fenced).isNotDone();

        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();
        assertThat(fenced).isDone();
        assertThat(decoder.reported).containsExactly("failed r");
    }

    @Test
    void shouldKeepASecondFenceWaitingForTheSameWrites() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        CompletableFuture<Void> again = new CompletableFuture<>();
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), again));
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
        nowNs += LIMITS.lastWordWaitNs();
        prefiller.messenger.doWork();

        assertThat(prefiller.wire.take()).noneMatch(ControlFrame::hasCannotDeliver);
        assertThat(prefiller.wire.closed).isTrue();
        decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "closed by the peer");
        assertThat(decoder.reported).isEmpty();
        nowNs += LIMITS.silenceLimitNs();
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("quarantined r");
        assertThat(decoder.cache.held().quarantinedPages()).isEqualTo(2);
        decoder.transfer.completions.add(
                handler -> handler.onAdmissionClosed(decoder.transfer.revoked.getFirst(), "revoked"));
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("quarantined r", "failed r");
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
        beginStep(new EngineCommand.Chunk("r", "t-r", PROMPT_TOKENS, 0, 0, 1, 0, new int[] {5}));
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        carry();

        assertThat(prefiller.enqueued).containsExactly("t-r");
        assertThat(prefiller.transfer.submitted).isEmpty();
        compute("r", 0);
        assertThat(prefiller.transfer.submitted)
                .as("the grant that was sent again")
                .isNotEmpty();
    }

    @Test
    void shouldEndAFetchOnceWhenItsSessionEndsInTheSameDutyCycle() {
        decoder.transfer.freeSlots = 1;
        fetch("granted", 1, 0);
        fetch("waiting", 3, LIMITS.silenceLimitNs());
        decoder.cache.onCommand(new EngineCommand.Abandon("granted"));
        nowNs += LIMITS.silenceLimitNs();
        decoder.messenger.doWork();

        assertThat(decoder.reported).containsExactlyInAnyOrder("failed waiting", "quarantined granted");
    }

    @Test
    void shouldNotWaitForAGrantWhenTheCancelCrossedThePreemption() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        carry();
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();

        compute("r", 0);
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));
        assertThat(prefiller.reported).containsExactly("released r");
    }

    @Test
    void shouldNotWaitForAGrantWhenTheCancelCrossedTheWordOfThePreemption() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite(); // its word is on the wire when the cancel leaves
        }
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        compute("r", 0);
        carry();

        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));
        assertThat(prefiller.reported).containsExactly("released r");
        assertThat(decoder.reported).containsExactly("failed r");
    }

    @Test
    void shouldNotPromiseAPromptAgainThatItsEngineHasEndedWhenItTakesThePages() {
        fetch("r", 1, 0);
        carry();
        prefiller.transfer.backPressured = 1000;
        compute("r", 0);
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));
        CompletableFuture<Void> fenced = new CompletableFuture<>();
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), fenced));
        carry();

        assertThat(fenced).isDone();
        assertThat(prefiller.reported).containsExactly("released r");
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("has ended the request");
    }

    @Test
    void shouldAnswerAGrantAtOnceForAPromptThatItsEngineHasEndedAndTaken() {
        compute("r", 0);
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        fetch("r", 1, 0);
        carry();

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("has ended the request");
        assertThat(prefiller.reported).containsExactly("released r");
    }

    @Test
    void shouldGrantAgainAfterAPreemption() {
        fetch("r", 1, 0);
        carry();
        cannotDeliver(FIRST_GRANT, CannotDeliver.Reason.PREEMPTED);

        assertThat(decoder.wire.take()).singleElement().matches(ControlFrame::hasGrant);
    }

    @Test
    void shouldReportTheGrantOfAnAnnouncedPromptWhicheverComesFirst() {
        announce("early");
        fetch("early", 1, 0);
        fetch("late", 3, 0);
        carry();
        announce("late");

        assertThat(prefiller.reported)
                .containsExactly("granted early [0, " + PROMPT_TOKENS + ")", "granted late [0, " + PROMPT_TOKENS + ")");
    }

    @Test
    void shouldSendWhatIsComputedOutsideOfSteps() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        reportComputed("r", PROMPT_TOKENS, Geometries.PAGE_TOKENS, 0, 5);
        int firstPage = prefiller.transfer.submitted.size();
        reportComputed("r", PROMPT_TOKENS, PROMPT_TOKENS, 1, 6);
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));

        assertThat(firstPage).isPositive();
        assertThat(prefiller.transfer.submitted).hasSize(2 * firstPage);
        while (!prefiller.transfer.submitted.isEmpty()) {
            assertThat(prefiller.reported).doesNotContain("released r");
            completeOneWrite();
        }
        assertThat(prefiller.reported).endsWith("released r").doesNotContain("stopped r");
    }

    @Test
    void shouldDeclineTheGrantOfAnAnnouncedPromptThatNeverBegins() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.ABORTED));
        carry();

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(prefiller.reported).endsWith("released r");
        assertThat(prefiller.cache.held().prefills()).isZero();
    }

    @Test
    void shouldReportThatAnAnnouncedPromptWasCancelled() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        carry();

        assertThat(prefiller.reported).endsWith("stopped r");
        assertThat(decoder.reported).containsExactly("failed r");
    }

    @Test
    void shouldStopAnAnnouncedPromptThatTurnsOutToBeAnother() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        reportComputed("r", PROMPT_TOKENS + 1, Geometries.PAGE_TOKENS, 0, 5);
        carry();

        assertThat(prefiller.transfer.submitted).isEmpty();
        assertThat(prefiller.reported).endsWith("stopped r");
        assertThat(decoder.reported).containsExactly("failed r");
    }

    @Test
    void shouldEndTheSessionOfADecoderThatHoldsAFenceUp() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        nowNs += LIMITS.fenceLimitNs() - 1;
        prefiller.messenger.doWork();
        assertThat(prefiller.transfer.disconnected).isEmpty();
        assertThat(prefiller.messenger.nextDeadlineNs()).isEqualTo(nowNs + 1);
        nowNs += 1;
        prefiller.messenger.doWork();

        assertThat(prefiller.transfer.disconnected).hasSize(1);
        assertThat(prefiller.wire.closed).isTrue();
    }
}
