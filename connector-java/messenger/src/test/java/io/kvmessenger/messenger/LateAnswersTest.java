package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.Chunk;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.TransferFault;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;

/** Words that come when what they are about is over already, or never was: each is answered, and none is taken for another. */
class LateAnswersTest extends MessengerPair {
    @Test
    void shouldConfirmACancelThatComesWhenAllHasBeenSent() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        completeAllWrites();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        carry();

        assertThat(decoder.reported).containsExactly("failed r");
    }

    @Test
    void shouldNotTakeAnAnswerToAnEarlierGrantForOneToTheLast() {
        fetch("r", 1, 0);
        decoder.messenger.doWork();
        List<ControlFrame> frames = decoder.wire.take();
        long first = frames.stream()
                .filter(ControlFrame::hasGrant)
                .findFirst()
                .orElseThrow()
                .getGrant()
                .getGrantId();
        frames.forEach(frame -> prefiller.messenger.onFrame(Wire.DIALLED_LINK, frame));
        beginStep(new Chunk("r", "t-r", PROMPT_TOKENS, 0, 0, 1, 0, new int[] {5}));
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        carry(); // the decoder has granted again
        cannotDeliver(first, CannotDeliver.Reason.PREFILL_ABORTED);

        assertThat(decoder.reported).isEmpty();
        assertThat(decoder.cache.held().windowsOpen()).isEqualTo(1);
    }

    @Test
    void shouldEndTheSessionOfAPrefillerThatSendsMoreThanItWasGranted() {
        fetch("r", 1, 0);
        carry();
        decoder.transfer.completions.add(
                handler -> handler.onWindowOvershot(decoder.transfer.windowCookies.getLast(), 9, 8));
        decoder.messenger.doWork();

        assertThat(decoder.wire.closed).isTrue();
        assertThat(decoder.reported).containsExactly("quarantined r");
    }

    @Test
    void shouldEndASessionWhoseDataPathsAreLost() {
        fetch("r", 1, 0);
        carry();
        prefiller.transfer.completions.add(handler -> handler.onPeerLost(
                prefiller.transfer.connected.getLast(), TransferFault.PEER_CLOSED, "the path broke"));
        prefiller.messenger.doWork();
        nowNs += LIMITS.lastWordWaitNs();
        prefiller.messenger.doWork();

        assertThat(prefiller.wire.closed).isTrue();
    }

    @Test
    void shouldSayThatAStoppedPromptIsOverAndNotThatItComesAgain() {
        beginStep(new Chunk("r", "t-r", PROMPT_TOKENS, 0, 0, 1, 0, new int[] {5}));
        endStep();
        beginStep(new Chunk("r", "t-r", PROMPT_TOKENS + 1, 0, 1, 2, 1, new int[0]));
        fetch("r", 1, 0);
        decoder.messenger.doWork();
        decoder.wire.take().forEach(frame -> prefiller.messenger.onFrame(Wire.DIALLED_LINK, frame));

        assertThat(prefiller.wire.take())
                .filteredOn(ControlFrame::hasCannotDeliver)
                .singleElement()
                .satisfies(frame -> assertThat(frame.getCannotDeliver().getReason())
                        .isEqualTo(CannotDeliver.Reason.PREFILL_ABORTED));
    }

    @Test
    void shouldDeclineWhatItGivesUpBeforeItCouldGrant() {
        decoder.transfer.freeSlots = 0;
        fetch("r", 1, 0);
        carry();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        compute("r", 0);
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));
        carry();

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(prefiller.reported).containsExactly("released r");
    }

    @Test
    void shouldNotWaitInAPromptsNextLifeForADecoderThatHasItAlready() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        completeAllWrites();
        decoder.transfer.completions.add(handler -> handler.onWindowFilled(decoder.transfer.windowCookies.getLast()));
        carry();
        assertThat(decoder.reported).containsExactly("arrived r");
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        compute("r", 0);
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));
        carry();

        assertThat(prefiller.reported).containsExactly("released r");
    }

    private void completeAllWrites() {
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
    }
}
