package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.Chunk;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;

/** What the prefiller's engine may say of a prompt: in any order, twice, and never two things. */
class ChunkRulesTest extends MessengerPair {
    private static final int PAGE = Geometries.PAGE_TOKENS;

    private void step(Chunk... chunks) {
        beginStep(chunks);
        endStep();
    }

    private static Chunk chunk(String request, int firstToken, int endToken, int firstPage, int... pages) {
        return new Chunk(request, "t-" + request, PROMPT_TOKENS, 0, firstToken, endToken, firstPage, pages);
    }

    private void finish(String request) {
        end(request, PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();
    }

    private List<Integer> sourcePages() {
        return prefiller.transfer.requests.stream()
                .map(request -> ((PagedWrites) request).sourcePages())
                .flatMap(pages -> Arrays.stream(pages.indices())
                        .skip(pages.from())
                        .limit(pages.count())
                        .boxed())
                .distinct()
                .sorted()
                .toList();
    }

    @Test
    void shouldTakePositionsThatAreGivenTwice() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        reportComputed("r", PROMPT_TOKENS, PAGE, 0, 5, 6);
        step(chunk("r", 0, PROMPT_TOKENS, 1, 6));
        reportComputed("r", PROMPT_TOKENS, PROMPT_TOKENS, 0, 5, 6);
        finish("r");

        assertThat(sourcePages()).containsExactly(5, 6);
        assertThat(prefiller.reported).doesNotContain("stopped r").endsWith("released r");
    }

    @Test
    void shouldStopOnlyThePromptWhosePositionGetsAnotherPage() {
        refuses("position 0, expected 5 as before", chunk("r", 0, PROMPT_TOKENS, 0, 4, 6));
    }

    @Test
    void shouldStopOnlyThePromptWhosePagesLeaveAGap() {
        refuses("from position 2 on, expected a position from 0 to 1", chunk("r", PAGE, PROMPT_TOKENS, 2, 6));
    }

    @Test
    void shouldStopOnlyThePromptWhoseChunkLeavesTokensOut() {
        refuses("goes on at token " + (PAGE + 1), chunk("r", PAGE + 1, PROMPT_TOKENS, 1, 6));
    }

    @Test
    void shouldStopOnlyThePromptThatHasFewerPagesThanTokens() {
        refuses("has pages for 1 positions, expected 2", chunk("r", PAGE, PROMPT_TOKENS, 1));
    }

    @Test
    void shouldStopOnlyThePromptThatNamesAPageTheEngineHasNot() {
        refuses("names page 1000 at position 1", chunk("r", PAGE, PROMPT_TOKENS, 1, 1000));
    }

    @Test
    void shouldStopOnlyThePromptWhoseLengthChanges() {
        refuses("expected " + PROMPT_TOKENS + " as before", new Chunk("r", "t-r", 1, 0, 0, 1, 1, new int[] {6}));
    }

    @Test
    void shouldStopOnlyThePromptThatChangesItsTransfer() {
        refuses(
                "names transfer other, expected t-r",
                new Chunk("r", "other", PROMPT_TOKENS, 0, PAGE, PROMPT_TOKENS, 1, new int[] {6}));
    }

    /** The wrong chunk comes in one step with that of a bystander, which arrives. */
    private void refuses(String why, Chunk wrong) {
        announce("r");
        fetch("r", 1, 0);
        fetch("bystander", 3, 0);
        carry();
        step(chunk("r", 0, PAGE, 0, 5));
        int before = prefiller.transfer.submitted.size();
        step(wrong, chunk("bystander", 0, PROMPT_TOKENS, 0, 7, 2));

        assertThat(prefiller.reported).contains("stopped r");
        assertThat(prefiller.transfer.submitted.size()).isGreaterThan(before);
        finish("bystander");
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains(why);
        assertThat(prefiller.reported).contains("released bystander");
        end("r", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        assertThat(prefiller.reported).endsWith("released r");
    }

    @Test
    void shouldRefuseAGrantForTokensBeforeTheFirstPageThatIsNamed() {
        fetch("r", 1, 0);
        carry();
        step(chunk("r", PAGE, PROMPT_TOKENS, 1, 6));
        carry();

        assertThat(prefiller.transfer.submitted).isEmpty();
        assertThat(decoder.lastFailure).contains("named pages for those from " + PAGE);
    }

    @Test
    void shouldRefuseAGrantWithoutADigestForAPromptThatHasOne() {
        fetch("r", 1, "");
        carry();
        step(new Chunk(
                "r",
                "t-r",
                PROMPT_TOKENS,
                0,
                0,
                PROMPT_TOKENS,
                List.of(new EngineCommand.ChunkPages(0, new int[] {5, 6})),
                "our prompt"));
        carry();

        assertThat(prefiller.transfer.submitted).isEmpty();
        assertThat(decoder.lastFailure).contains("another prompt");
    }

    @Test
    void shouldSendThePromptThatBothMean() {
        fetch("r", 1, "our prompt");
        carry();
        step(new Chunk(
                "r",
                "t-r",
                PROMPT_TOKENS,
                0,
                0,
                PROMPT_TOKENS,
                List.of(new EngineCommand.ChunkPages(0, new int[] {5, 6})),
                "our prompt"));
        finish("r");

        assertThat(sourcePages()).containsExactly(5, 6);
        assertThat(decoder.reported).isEmpty();
    }

    @Test
    void shouldBringTheSaltAndThePriorityOfADecoderFirstPrompt() {
        decoder.cache.onCommand(
                fetchOf("r", 1, 0, "", new EngineCommand.Prompt(new int[] {7, 8}, "a tenant's own", -3)));
        carry();

        assertThat(prefiller.prompts).singleElement().satisfies(prompt -> {
            assertThat(prompt.tokenIds()).containsExactly(7, 8);
            assertThat(prompt.cacheSalt()).isEqualTo("a tenant's own");
            assertThat(prompt.priority()).isEqualTo(-3);
        });
    }

    @Test
    void shouldNotSendWhatThePrefillerWouldEndTheLinkFor() {
        decoder.cache.onCommand(fetchOf("r", 1, 0, "d".repeat(129), EngineCommand.Prompt.NONE));
        carry();

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("prompt_digest of 129 characters");
        fetch("bystander", 3, 0);
        assertThat(decoder.wire.sent).singleElement().matches(frame -> frame.hasGrant());
    }

    @Test
    void shouldStopOnlyThePromptThatMeetsABug() {
        fetch("r", 1, 0);
        fetch("bystander", 3, 0);
        carry();
        prefiller.transfer.poisonedPage = 5;
        step(chunk("r", 0, PROMPT_TOKENS, 0, 5, 6), chunk("bystander", 0, PROMPT_TOKENS, 0, 7, 2));
        prefiller.messenger.doWork();
        finish("bystander");

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("a bug");
        assertThat(prefiller.tally.sum(MessengerMetric.FAULTS_CONTAINED)).isEqualTo(1);
        assertThat(prefiller.reported).containsExactly("released bystander");
    }
}
