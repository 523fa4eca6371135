package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.Chunk;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.LayerProgress;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;

/** Forward passes that are queued behind each other, and end when the layer counter says so. */
class StepsInFlightTest extends MessengerPair {
    private static final int LAYERS = 2;

    private void begin(long step, long counterStart, Chunk... chunks) {
        prefiller.cache.onCommand(new EngineCommand.Step(step, counterStart, List.of(chunks)));
    }

    private void end(long step, long counterEnd) {
        prefiller.cache.onCommand(new EngineCommand.StepEnded(step, counterEnd));
    }

    private void fail(long step) {
        prefiller.cache.onCommand(new EngineCommand.StepFailed(step));
    }

    private void count(long count) {
        prefiller.progress.count = count;
        prefiller.messenger.doWork();
    }

    private static Chunk whole(String request) {
        return new Chunk(request, "t-" + request, PROMPT_TOKENS, 0, 0, PROMPT_TOKENS, 0, new int[] {5, 6});
    }

    /** The prompt's first page, and then the rest. */
    private static Chunk first(String request) {
        return new Chunk(request, "t-" + request, PROMPT_TOKENS, 0, 0, Geometries.PAGE_TOKENS, 0, new int[] {5});
    }

    private static Chunk rest(String request) {
        return new Chunk(
                request, "t-" + request, PROMPT_TOKENS, 0, Geometries.PAGE_TOKENS, PROMPT_TOKENS, 1, new int[] {6});
    }

    private int submitted() {
        return prefiller.transfer.submitted.size();
    }

    private void granted(String... requests) {
        int page = 0;
        for (String request : requests) {
            fetch(request, page, 0);
            page += 2;
        }
        carry();
    }

    private void assertArrives(String request) {
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();
        assertThat(prefiller.reported).contains("released " + request);
        assertThat(prefiller.cache.held().prefills()).isZero();
    }

    @Test
    void shouldSendNothingOfAPassThatIsQueuedToItsEndBeforeItIsCounted() {
        granted("r");
        begin(1, 100, whole("r"));
        end(1, 102);
        count(99);
        assertThat(submitted()).isZero();
        count(101);
        assertThat(submitted()).isEqualTo(1);
        count(102);
        assertThat(submitted()).isEqualTo(LAYERS);
        end("r", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        assertArrives("r");
    }

    @Test
    void shouldTakeASecondStepBeforeTheFirstHasEnded() {
        granted("r");
        begin(1, 0, first("r"));
        begin(2, 2, rest("r"));
        count(1);
        assertThat(submitted()).as("the first page of the first layer").isEqualTo(1);
        end(1, 2);
        end(2, 4);
        count(3);
        assertThat(submitted())
                .as("and of the second, and the rest of the first")
                .isEqualTo(3);
        count(4);
        assertThat(submitted()).isEqualTo(4);
        end("r", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        assertThat(prefiller.reported).doesNotContain("stopped r");
        assertArrives("r");
    }

    @Test
    void shouldHoldThePagesOfAFinishedPromptUntilItsLastPassIsCounted() {
        granted("r");
        begin(1, 0, first("r"));
        end(1, 2);
        begin(2, 2, rest("r"));
        end(2, 4);
        end("r", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        carry();
        assertThat(prefiller.reported).isEmpty();
        count(4);
        assertThat(submitted()).isEqualTo(LAYERS);
        assertArrives("r");
        assertThat(decoder.reported).doesNotContain("failed r");
    }

    @Test
    void shouldStopThePromptsOfAPassThatFailedAndNoOthers() {
        granted("r", "s");
        begin(1, 0, whole("r"));
        begin(2, 3, whole("s"));
        fail(1);
        count(4);
        assertThat(submitted()).as("the first layer of s").isEqualTo(1);
        end(2, 5);
        end(1, 2);
        count(5);
        carry();
        assertThat(decoder.reported).contains("failed r").doesNotContain("failed s");
        end("s", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        end("r", PrefillOutcome.FAILED, ContextSlots.NO_SLOT);
        assertArrives("s");
    }

    @Test
    void shouldStopAFinishedPromptWhoseLastPassFails() {
        granted("r");
        begin(1, 0, whole("r"));
        end("r", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        fail(1);
        carry();
        assertThat(submitted()).isZero();
        assertThat(prefiller.reported).containsExactly("released r");
        assertThat(decoder.lastFailure).contains("forward pass failed");
    }

    @Test
    void shouldGiveTheOldestUpWhenMoreAreInFlightThanItWatches() {
        granted("r", "s");
        begin(1, 0, whole("r"));
        for (int step = 2; step <= LayerProgress.STEPS_IN_FLIGHT_MAX; step++) {
            begin(step, step * 10L);
        }
        assertThat(prefiller.progress.inFlightCount()).isEqualTo(LayerProgress.STEPS_IN_FLIGHT_MAX);
        begin(50, 100, whole("s"));
        carry();
        assertThat(prefiller.progress.inFlightCount()).isEqualTo(LayerProgress.STEPS_IN_FLIGHT_MAX);
        assertThat(decoder.lastFailure).contains("step 1 has not ended with 8 forward passes in flight");
        end(1, 2);
        end(50, 102);
        count(102);
        assertThat(submitted()).isEqualTo(LAYERS);
        end("s", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        end("r", PrefillOutcome.FAILED, ContextSlots.NO_SLOT);
        assertArrives("s");
    }

    @Test
    void shouldRefuseThePromptsOfAStepThatBeginsWhereAnotherCounts() {
        granted("r", "s");
        begin(1, 0, whole("r"));
        end(1, 2);
        begin(2, 1, whole("s"));
        count(2);
        carry();
        assertThat(decoder.lastFailure)
                .contains("step 2 from 1 of the layer counter on, expected 2 or more: the passes before it go as far");
        assertThat(decoder.reported).contains("failed s").doesNotContain("failed r");
        begin(1, 2, whole("u"));
        assertThat(prefiller.progress.inFlightCount()).isZero();
    }

    @Test
    void shouldRefuseAnEndBeforeTheStart() {
        granted("r");
        begin(1, 10, whole("r"));
        end(1, 9);
        count(20);
        carry();
        assertThat(submitted()).isZero();
        assertThat(decoder.lastFailure).contains("ended step 1 at 9 of the layer counter, expected its start at 10");
    }

    /** A prompt of a later step, told as it should be, is sent; the engine ends those that were refused. */
    private void assertServes(String request, long step, long counterStart, String... refused) {
        for (String each : refused) {
            assertThat(decoder.reported).contains("failed " + each);
            end(each, PrefillOutcome.FAILED, ContextSlots.NO_SLOT);
        }
        begin(step, counterStart, whole(request));
        end(step, counterStart + LAYERS);
        count(counterStart + LAYERS);
        end(request, PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        assertArrives(request);
        assertThat(decoder.reported).doesNotContain("failed " + request);
    }

    @Test
    void shouldServeTheNextStepAfterAnEndFarAhead() {
        granted("r", "s");
        begin(1, 0, whole("r"));
        end(1, 1_000_000);
        carry();
        assertThat(decoder.lastFailure)
                .contains(
                        "ended step 1 at 1000000 of the layer counter, expected 3 or less: a forward pass counts its 2"
                                + " layers and one more at most");
        assertServes("s", 2, 2, "r");
    }

    @Test
    void shouldServeAStepSoonAfterAnEndALittleAhead() {
        granted("r", "s", "u");
        begin(1, 0, whole("r"));
        end(1, 3);
        begin(2, 2, whole("s"));
        carry();
        end("r", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        assertServes("u", 3, 4, "s");
        assertThat(decoder.reported).doesNotContain("failed r");
    }

    @Test
    void shouldServeTheNextStepAfterAStartFarAhead() {
        granted("r", "s");
        begin(1, 1_000_000, whole("r"));
        carry();
        assertThat(decoder.lastFailure)
                .contains("step 1 from 1000000 of the layer counter on, expected 192 or less: the counter shows 0");
        assertServes("s", 2, 0, "r");
    }

    @Test
    void shouldServeAStepSoonAfterANumberFarAhead() {
        granted("r", "s", "u");
        begin(1_000_000, 0, whole("r"));
        begin(2, 2, whole("s"));
        carry();
        assertThat(prefiller.progress.inFlightCount()).isZero();
        assertServes("u", 3, 4, "r", "s");
    }

    @Test
    void shouldFenceAPreemptedPromptOfSeveralStepsAndSendNothingMoreOfIt() {
        granted("r");
        begin(1, 0, first("r"));
        end(1, 2);
        begin(2, 2, rest("r"));
        end(2, 4);
        count(1);
        assertThat(submitted()).isEqualTo(1);
        CompletableFuture<Void> fenced = new CompletableFuture<>();
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), fenced));
        assertThat(fenced).as("a write reads its first page").isNotDone();
        completeOneWrite();
        assertThat(fenced).isDone();
        count(4);
        assertThat(submitted()).isZero();
        end("r", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        assertThat(prefiller.reported).contains("released r");
    }
}
