package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.Chunk;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Requests that use one transfer id at the same moment, for prompts that differ and for one prompt. */
class SameIdTest extends MessengerPair {
    private static final String ID = "one-id";
    private static final TransferKey FIRST = new TransferKey(ID, "aa");
    private static final TransferKey SECOND = new TransferKey(ID, "bb");
    private static final TransferKey THIRD = new TransferKey(ID, "cc");
    private static final TransferKey FOURTH = new TransferKey(ID, "dd");
    private static final List<PrefillerAddress> PREFILLER = List.of(new PrefillerAddress("host", 7, ""));
    private static final int[] FIRST_PAGES = {5, 6};
    private static final int[] SECOND_PAGES = {7, 2};

    private void fetch(String request, TransferKey transfer, int firstPage) {
        fetch(request, transfer, firstPage, EngineCommand.Prompt.NONE);
    }

    private void fetch(String request, TransferKey transfer, int firstPage, EngineCommand.Prompt prompt) {
        decoder.cache.onCommand(new EngineCommand.Fetch(
                request,
                transfer.id(),
                PREFILLER,
                PROMPT_TOKENS,
                0,
                List.of(new int[] {firstPage, firstPage + 1}),
                ContextSlots.NO_SLOT,
                List.of(),
                1_000_000,
                transfer.digest(),
                prompt));
        carry();
    }

    private void announce(String request, TransferKey transfer) {
        prefiller.cache.onCommand(new EngineCommand.Announce(request, transfer.id(), transfer.digest()));
        carry();
    }

    private void compute(String request, TransferKey transfer, int... pages) {
        prefiller.cache.onCommand(new EngineCommand.Computed(new Chunk(
                request,
                transfer.id(),
                PROMPT_TOKENS,
                0,
                0,
                PROMPT_TOKENS,
                List.of(new EngineCommand.ChunkPages(0, pages)),
                transfer.digest())));
        carry();
    }

    private void finish(String request) {
        end(request, PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        carry();
    }

    private void completeAllWrites() {
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();
    }

    private void pass(long ns) {
        for (long passed = 0; passed < ns; passed += LIMITS.heartbeatNs() / 2) {
            nowNs += LIMITS.heartbeatNs() / 2;
            carry();
        }
    }

    /** Which pages of the prefiller went to which of the decoder, as "5>1". */
    private Set<String> pagesSent() {
        return prefiller.transfer.requests.stream()
                .map(request -> (PagedWrites) request)
                .flatMap(write -> {
                    int[] source = pages(write.sourcePages());
                    int[] target = pages(write.targetPages());
                    return IntStream.range(0, source.length).mapToObj(i -> source[i] + ">" + target[i]);
                })
                .collect(Collectors.toSet());
    }

    private static int[] pages(PageList grid) {
        return Arrays.copyOfRange(grid.indices(), grid.from(), grid.from() + grid.count());
    }

    // ---- prompts that differ

    @ParameterizedTest
    @ValueSource(strings = {"ffpp", "ppff", "fpfp", "pfpf", "fppf", "pffp"})
    void shouldServeTwoPromptsUnderOneIdWhicheverSideIsFirst(String order) {
        int fetches = 0;
        int prefills = 0;
        for (int side : order.chars().toArray()) {
            if (side == 'f') {
                fetch(fetches == 0 ? "d1" : "d2", fetches == 0 ? FIRST : SECOND, fetches == 0 ? 1 : 3);
                fetches++;
            } else {
                prefills++; // the second one's prefill begins first
                announce("p" + prefills, prefills == 1 ? SECOND : FIRST);
            }
        }
        compute("p1", SECOND, SECOND_PAGES);
        compute("p2", FIRST, FIRST_PAGES);
        finish("p1");
        finish("p2");
        completeAllWrites();

        assertThat(pagesSent()).containsExactlyInAnyOrder("5>1", "6>2", "7>3", "2>4");
        assertThat(decoder.reported).isEmpty();
        assertThat(prefiller.reported)
                .contains("released p1", "released p2")
                .noneMatch(word -> word.startsWith("stopped"));
        assertThat(prefiller.cache.held().prefills()).isZero();
    }

    @Test
    void shouldNotEndOnePromptByTheDeclineOfTheOther() {
        announce("p1", FIRST);
        announce("p2", SECOND);
        decoder.cache.onCommand(new EngineCommand.Decline(FIRST, PREFILLER));
        carry();
        assertThat(prefiller.reported).containsExactly("stopped p1");
        compute("p2", SECOND, SECOND_PAGES);
        finish("p2");
        finish("p1");
        fetch("d2", SECOND, 3);
        completeAllWrites();

        assertThat(pagesSent()).containsExactlyInAnyOrder("7>3", "2>4");
        assertThat(prefiller.reported).contains("released p1", "released p2");
    }

    @Test
    void shouldRememberADeclineForItsOwnPromptOnly() {
        decoder.cache.onCommand(new EngineCommand.Decline(FIRST, PREFILLER));
        carry();
        compute("p2", SECOND, SECOND_PAGES);
        finish("p2");
        assertThat(prefiller.reported).as("its decoder has not spoken").isEmpty();
        compute("p1", FIRST, FIRST_PAGES);
        finish("p1");

        assertThat(prefiller.reported).containsExactly("released p1");
    }

    @Test
    void shouldCancelOnePromptOnly() {
        fetch("d1", FIRST, 1);
        fetch("d2", SECOND, 3);
        decoder.cache.onCommand(new EngineCommand.Abandon("d1"));
        carry();
        compute("p2", SECOND, SECOND_PAGES);
        finish("p2");
        completeAllWrites();
        compute("p1", FIRST, FIRST_PAGES);
        finish("p1");

        assertThat(decoder.reported).containsExactly("failed d1");
        assertThat(pagesSent()).containsExactlyInAnyOrder("7>3", "2>4");
        assertThat(prefiller.reported).as("the first need not wait").contains("released p1", "released p2");
    }

    @Test
    void shouldNotAnswerForAnotherPromptFromMemory() {
        announce("p1", FIRST);
        end("p1", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        fetch("d2", SECOND, 3);
        assertThat(decoder.reported).isEmpty();
        fetch("d1", FIRST, 1);
        assertThat(decoder.reported).containsExactly("failed d1");
        assertThat(decoder.lastFailure).contains("ABORTED");
        compute("p2", SECOND, SECOND_PAGES);
        finish("p2");
        completeAllWrites();

        assertThat(pagesSent()).containsExactlyInAnyOrder("7>3", "2>4");
    }

    @Test
    void shouldKeepThePromptThatIsExpectedAndNotTheOther() {
        decoder.cache.onCommand(new EngineCommand.Expect(SECOND, PREFILLER));
        carry();
        compute("p1", FIRST, FIRST_PAGES);
        compute("p2", SECOND, SECOND_PAGES);
        finish("p1");
        finish("p2");
        pass(LIMITS.grantWaitNs() + LIMITS.heartbeatNs());

        assertThat(prefiller.reported).containsExactly("released p1");
    }

    @Test
    void shouldSayWhichOfTheExpectedPromptsIsComputed() {
        decoder.cache.onCommand(new EngineCommand.Expect(FIRST, PREFILLER));
        decoder.cache.onCommand(new EngineCommand.Expect(SECOND, PREFILLER));
        announce("p1", FIRST);
        compute("p2", SECOND, SECOND_PAGES);
        finish("p2");

        assertThat(decoder.reported).containsExactly("prefilled one-id bb");
    }

    @Test
    void shouldSayThatAnotherPromptCameUnderThatId() {
        compute("p2", SECOND, SECOND_PAGES);
        fetch("d1", FIRST, 1);
        pass(LIMITS.grantWaitNs() + LIMITS.heartbeatNs());

        assertThat(decoder.reported).containsExactly("failed d1");
        assertThat(decoder.lastFailure).contains("unheard_limit_seconds", "another prompt", "same tokenizer");
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void shouldEndBothLegsThatNameDifferentPrompts(boolean grantFirst) {
        if (grantFirst) {
            fetch("d1", FIRST, 1);
            announce("p2", SECOND);
        } else {
            announce("p2", SECOND);
            fetch("d1", FIRST, 1);
        }
        assertThat(decoder.reported).as("more of either may come").isEmpty();
        pass(LIMITS.contradictionWaitNs() + LIMITS.heartbeatNs());

        assertThat(decoder.reported).containsExactly("failed d1");
        assertThat(decoder.lastFailure).contains("name different prompts", "same tokens and adapter");
        assertThat(prefiller.reported).contains("stopped p2");
        assertThat(prefiller.cache.held().grantsWaiting()).isZero();
        end("p2", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        assertThat(prefiller.cache.held().prefills()).isZero();
    }

    @Test
    void shouldNotTakeALegThatIsLateForAContradiction() {
        announce("p2", SECOND);
        fetch("d1", FIRST, 1);
        pass(LIMITS.contradictionWaitNs() / 2);
        announce("p1", FIRST);
        pass(LIMITS.contradictionWaitNs());
        fetch("d2", SECOND, 3);
        compute("p1", FIRST, FIRST_PAGES);
        compute("p2", SECOND, SECOND_PAGES);
        finish("p1");
        finish("p2");
        completeAllWrites();

        assertThat(pagesSent()).containsExactlyInAnyOrder("5>1", "6>2", "7>3", "2>4");
        assertThat(prefiller.reported)
                .contains("released p1", "released p2")
                .noneMatch(word -> word.startsWith("stopped"));
    }

    @Test
    void shouldNotTakeLegsThatHaveJustComeForThoseThatWerePuzzlingBefore() {
        fetch("d1", FIRST, 0);
        announce("p2", SECOND);
        pass(LIMITS.contradictionWaitNs() / 2);
        announce("p1", FIRST);
        fetch("d2", SECOND, 2);
        pass(LIMITS.contradictionWaitNs() / 2 - LIMITS.heartbeatNs());
        fetch("d3", THIRD, 4); // its prefill leg is a moment behind, as is the decode leg of the fourth
        announce("p4", FOURTH);
        pass(2 * LIMITS.heartbeatNs());
        announce("p3", THIRD);
        fetch("d4", FOURTH, 6);

        assertThat(decoder.reported).isEmpty();
        assertThat(prefiller.reported).noneMatch(word -> word.startsWith("stopped"));
        assertThat(prefiller.cache.held().grantsWaiting()).isZero();
    }

    @Test
    void shouldEndNoLegsOfWhichSomeMayOnlyBeLate() {
        announce("p2", SECOND);
        announce("p3", THIRD);
        fetch("d1", FIRST, 1);
        pass(LIMITS.contradictionWaitNs() + LIMITS.heartbeatNs());

        assertThat(decoder.lastFailure).as("its own limit").contains("unheard_limit_seconds");
        assertThat(prefiller.reported)
                .as("which of them the first contradicts is not known")
                .isEmpty();
    }

    @Test
    void shouldKeepAnAnnouncedPromptThatIsExpectedBesideAnother() {
        decoder.cache.onCommand(new EngineCommand.Expect(SECOND, PREFILLER));
        carry();
        announce("p2", SECOND);
        fetch("d1", FIRST, 1);
        pass(LIMITS.contradictionWaitNs() + LIMITS.heartbeatNs());

        assertThat(prefiller.reported).isEmpty();
    }

    @Test
    void shouldWaitAFewSecondsForAContradictionToClear() {
        long seconds = 1_000_000_000L;
        ProtocolLimits patient = new ProtocolLimits(120 * seconds, 300 * seconds, seconds, seconds, seconds);

        assertThat(patient.contradictionWaitNs()).isEqualTo(5 * seconds);
    }

    @Test
    void shouldSayThatAnotherPromptHadComeUnderThatId() {
        fetch("d1", FIRST, 1);
        announce("p2", SECOND);
        end("p2", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        pass(LIMITS.grantWaitNs() + LIMITS.heartbeatNs());

        assertThat(decoder.lastFailure).contains("another prompt", "same tokenizer");
    }

    @Test
    void shouldEnqueueBothPromptsOfOneIdAndTakeBackTheOneThatIsRefused() {
        fetch("d1", FIRST, 1, new EngineCommand.Prompt(new int[] {1}, "", 0));
        fetch("d2", SECOND, 3, new EngineCommand.Prompt(new int[] {2}, "", 0));
        assertThat(prefiller.enqueued).containsExactly(ID, ID);
        prefiller.cache.onEnqueueFailed(FIRST, "the engine is full");
        carry();

        assertThat(decoder.reported).containsExactly("failed d1");
        assertThat(decoder.lastFailure).contains("the engine is full");
        assertThat(prefiller.cache.held().grantsWaiting()).isEqualTo(1);
    }

    // ---- one prompt

    @ParameterizedTest
    @ValueSource(strings = {"ffpp", "ppff", "fpfp", "pfpf", "fppf", "pffp"})
    void shouldServeEachRequestOfOnePrompt(String order) {
        int fetches = 0;
        int prefills = 0;
        for (int side : order.chars().toArray()) {
            if (side == 'f') {
                fetches++;
                fetch("d" + fetches, FIRST, 2 * fetches - 1);
            } else {
                prefills++;
                compute("p" + prefills, FIRST, prefills == 1 ? FIRST_PAGES : SECOND_PAGES);
                finish("p" + prefills);
            }
        }
        completeAllWrites();

        assertThat(pagesSent()).hasSize(4).allMatch(page -> page.matches("[56]>[1-4]|[72]>[1-4]"));
        assertThat(pagesSent().stream().map(page -> page.substring(2))).containsExactlyInAnyOrder("1", "2", "3", "4");
        assertThat(decoder.reported).isEmpty();
        assertThat(prefiller.reported).containsExactlyInAnyOrder("released p1", "released p2");
    }

    @Test
    void shouldKeepOnePrefillForEachRequestThatIsExpected() {
        decoder.cache.onCommand(new EngineCommand.Expect(FIRST, PREFILLER));
        decoder.cache.onCommand(new EngineCommand.Expect(FIRST, PREFILLER));
        carry();
        compute("p1", FIRST, FIRST_PAGES);
        compute("p2", FIRST, SECOND_PAGES);
        finish("p1");
        finish("p2");
        fetch("d1", FIRST, 1);
        completeAllWrites();
        pass(3 * LIMITS.grantWaitNs());
        assertThat(prefiller.reported).containsExactly("released p1");
        decoder.cache.onCommand(new EngineCommand.Decline(FIRST, PREFILLER));
        carry();

        assertThat(prefiller.reported).containsExactly("released p1", "released p2");
    }

    @Test
    void shouldTakeADeclineForTheRequestThatHasNotBegun() {
        compute("p1", FIRST, FIRST_PAGES);
        finish("p1");
        fetch("d1", FIRST, 1);
        decoder.cache.onCommand(new EngineCommand.Decline(FIRST, PREFILLER));
        carry();
        compute("p2", FIRST, SECOND_PAGES);
        finish("p2");
        assertThat(prefiller.reported).as("the first is still being written").containsExactly("released p2");
        completeAllWrites();

        assertThat(prefiller.reported).containsExactly("released p2", "released p1");
    }

    @Test
    void shouldNotDismissAPrefillByTheLateCancelOfAnother() {
        compute("p1", FIRST, FIRST_PAGES);
        fetch("d1", FIRST, 1);
        finish("p1");
        completeAllWrites();
        compute("p2", FIRST, SECOND_PAGES);
        finish("p2");
        decoder.cache.onCommand(new EngineCommand.Abandon("d1")); // all has left, and not arrived yet
        carry();
        assertThat(decoder.reported).containsExactly("failed d1");
        assertThat(prefiller.reported).containsExactly("released p1");
        fetch("d2", FIRST, 3);
        completeAllWrites();

        assertThat(prefiller.reported).containsExactly("released p1", "released p2");
        assertThat(pagesSent()).contains("7>3", "2>4");
    }

    @Test
    void shouldServeBothWhenOneIsPreempted() {
        announce("p1", FIRST);
        announce("p2", FIRST);
        fetch("d1", FIRST, 1);
        compute("p1", FIRST, FIRST_PAGES);
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("p1"), new CompletableFuture<>()));
        completeAllWrites();
        fetch("d2", FIRST, 3);
        compute("p2", FIRST, SECOND_PAGES);
        compute("p1", FIRST, FIRST_PAGES);
        finish("p2");
        finish("p1");
        completeAllWrites();

        assertThat(decoder.reported).as("all of it had been posted, and landed").containsExactly("arrived d1");
        assertThat(prefiller.reported).as("either serves the second").contains("released p1", "released p2");
        assertThat(pagesSent().stream().map(page -> page.substring(2))).contains("1", "2", "3", "4");
        assertThat(prefiller.cache.held().prefills()).isZero();
    }

    @Test
    void shouldEnqueueOnePromptForEachRequestThatBringsIt() {
        EngineCommand.Prompt prompt = new EngineCommand.Prompt(new int[] {1}, "", 0);
        fetch("d1", FIRST, 1, prompt);
        fetch("d2", FIRST, 3, prompt);

        assertThat(prefiller.enqueued).containsExactly(ID, ID);
        compute("p1", FIRST, FIRST_PAGES);
        compute("p2", FIRST, SECOND_PAGES);
        finish("p1");
        finish("p2");
        completeAllWrites();
        assertThat(prefiller.reported).containsExactly("released p1", "released p2");
    }

    @Test
    void shouldAnswerAGrantWhoseOwnPrefillWasGivenUpWhileAnotherIsServed() {
        announce("p1", FIRST);
        announce("p2", FIRST);
        fetch("d1", FIRST, 1);
        end("p2", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        fetch("d2", FIRST, 3);
        assertThat(decoder.reported).containsExactly("failed d2");
        assertThat(decoder.lastFailure).contains("ABORTED");
        compute("p1", FIRST, FIRST_PAGES);
        finish("p1");
        completeAllWrites();

        assertThat(pagesSent()).containsExactlyInAnyOrder("5>1", "6>2");
    }

    @Test
    void shouldSendOneRequestOfAPromptAtATimeWhereContextRowsFollow() {
        prefiller = new Side("prefiller", 1, 4);
        decoder = new Side("decoder", 2, 4);
        connect();
        announce("p1", FIRST);
        announce("p2", FIRST);
        announce("p3", SECOND);

        assertThat(prefiller.reported)
                .as("only prompts that differ are told apart")
                .containsExactly("stopped p2");
    }

    // ---- no digest

    @Test
    void shouldSendOnePromptAtATimeWithoutADigest() {
        TransferKey undigested = new TransferKey(ID, "");
        announce("p1", undigested);
        announce("p2", FIRST);
        fetch("d1", undigested, 1);
        fetch("d2", FIRST, 3);

        assertThat(prefiller.reported).containsExactly("stopped p2", "granted p1 [0, 8)");
        assertThat(decoder.reported).containsExactly("failed d2");
        assertThat(decoder.lastFailure).contains("granted or given up already");
    }
}
