package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.Chunk;
import io.kvmessenger.messenger.port.EngineCommand.ChunkPages;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * A decoder that expects a prompt gets one event for it, whatever becomes of the prompt, and however late: its request
 * waits for that event without a limit of its own.
 */
class ExpectedPromptsTest extends MessengerPair {
    private static final List<PrefillerAddress> PREFILLER = List.of(new PrefillerAddress("host", 7, ""));

    private enum Fate {
        COMPUTED,
        ABORTED_IN_THE_QUEUE,
        ABORTED,
        ABORTED_AFTER_A_PREEMPTION,
        PASS_FAILED,
        PASS_FAILED_BEFORE_A_PREEMPTION
    }

    /** When the prefiller would report a prompt that has not come: while this one is there, or later. */
    private enum Limit {
        OVER_WHILE_IT_IS_QUEUED,
        OVER_AFTERWARDS
    }

    private record Case(Fate fate, Limit limit, boolean expectedFirst, String expectedAs, String computedAs) {}

    static Stream<Case> cases() {
        return Stream.of(Fate.values())
                .flatMap(fate -> Stream.of(Limit.values())
                        .flatMap(limit -> Stream.of(true, false)
                                .flatMap(first -> Stream.of("", "aa")
                                        .flatMap(expected -> Stream.of("", "aa")
                                                .map(computed -> new Case(fate, limit, first, expected, computed))))));
    }

    @ParameterizedTest
    @MethodSource("cases")
    void shouldReportTheEndOfAnExpectedPromptOnce(Case given) {
        if (given.expectedFirst) {
            expect(given);
        }
        prefiller.cache.onCommand(new EngineCommand.Announce("r", "t-r", given.computedAs));
        if (!given.expectedFirst) {
            expect(given);
        }
        if (given.limit == Limit.OVER_WHILE_IT_IS_QUEUED) {
            pass(2 * LIMITS.unheardLimitNs());
            assertThat(decoder.reported).isEmpty();
        }
        end(given);
        carry();
        pass(2 * LIMITS.unheardLimitNs());

        assertThat(decoder.reported).containsExactly(("prefilled t-r " + given.expectedAs).strip());
    }

    private void expect(Case given) {
        decoder.cache.onCommand(new EngineCommand.Expect(new TransferKey("t-r", given.expectedAs), PREFILLER));
        carry();
    }

    private void end(Case given) {
        switch (given.fate) {
            case ABORTED_IN_THE_QUEUE -> {}
            case COMPUTED -> {
                begin(given);
                endStep();
            }
            case ABORTED -> begin(given);
            case ABORTED_AFTER_A_PREEMPTION -> {
                begin(given);
                preempt();
            }
            case PASS_FAILED -> {
                begin(given);
                prefiller.cache.onCommand(new EngineCommand.StepFailed(lastStep));
            }
            case PASS_FAILED_BEFORE_A_PREEMPTION -> {
                begin(given);
                prefiller.cache.onCommand(new EngineCommand.StepFailed(lastStep));
                preempt();
            }
        }
        boolean computed = given.fate == Fate.COMPUTED;
        end("r", computed ? PrefillOutcome.FINISHED : PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
    }

    private void begin(Case given) {
        beginStep(new Chunk(
                "r",
                "t-r",
                PROMPT_TOKENS,
                0,
                0,
                PROMPT_TOKENS,
                List.of(new ChunkPages(0, new int[] {5, 6})),
                given.computedAs));
    }

    private void preempt() {
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
    }

    private void pass(long ns) {
        long step = LIMITS.heartbeatNs() / 2;
        for (long passed = 0; passed < ns; passed += step) {
            nowNs += Math.min(step, ns - passed);
            carry();
        }
    }
}
