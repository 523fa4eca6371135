package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * An engine asks again for a fence that was not reached in time, as often as it likes, of a prompt that runs or that it
 * has ended: the fence is reached with the last write, and nothing of the prompt is kept.
 */
class RepeatedFencesTest extends MessengerPair {
    private static final long LONG_NS = 1_000_000;
    private static final int ASKS_MAX = 3;

    private enum Prompt {
        RUNNING,
        FAILED,
        ABORTED
    }

    /**
     * @param completedBefore for each time that the engine asks, the writes that have completed since the time before
     * @param namedTwice whether the engine names the request twice
     */
    private record Case(Prompt prompt, List<Integer> completedBefore, boolean namedTwice) {}

    static Stream<Case> cases() {
        return Stream.of(Prompt.values())
                .flatMap(prompt -> IntStream.rangeClosed(1, ASKS_MAX)
                        .boxed()
                        .flatMap(RepeatedFencesTest::completions)
                        .flatMap(completed -> Stream.of(false, true).map(twice -> new Case(prompt, completed, twice))));
    }

    /** Nothing or one write between two times. */
    private static Stream<List<Integer>> completions(int asks) {
        return IntStream.range(0, 1 << asks)
                .mapToObj(bits -> IntStream.range(0, asks)
                        .mapToObj(ask -> bits >> ask & 1)
                        .toList());
    }

    @ParameterizedTest
    @MethodSource("cases")
    void shouldReachAFenceWithTheLastWriteHoweverOftenItIsAskedFor(Case given) {
        begin(given.prompt);
        CompletableFuture<Void> fenced = null;
        for (int completed : given.completedBefore) {
            IntStream.range(0, Math.min(completed, prefiller.transfer.submitted.size()))
                    .forEach(write -> completeOneWrite());
            fenced = new CompletableFuture<>();
            List<String> requests = Collections.nCopies(given.namedTwice ? 2 : 1, "r");
            prefiller.cache.onCommand(new EngineCommand.Preempt(requests, fenced));
            assertThat(fenced.isDone()).isEqualTo(prefiller.transfer.submitted.isEmpty());
        }
        while (!prefiller.transfer.submitted.isEmpty()) {
            assertThat(fenced).isNotDone();
            completeOneWrite();
        }
        assertThat(fenced).isDone();

        end("r", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        carry();
        assertThat(prefiller.cache.held().prefills()).isZero();
        CompletableFuture<Void> drained = new CompletableFuture<>();
        prefiller.messenger.drain("going", drained);
        prefiller.messenger.doWork();
        assertThat(drained).isDone();
    }

    private record Waits(Prompt prompt, int asks) {}

    static Stream<Waits> waits() {
        return Stream.of(Prompt.values())
                .flatMap(prompt -> IntStream.rangeClosed(1, ASKS_MAX).mapToObj(asks -> new Waits(prompt, asks)));
    }

    @ParameterizedTest
    @MethodSource("waits")
    void shouldEndThePeerThatDelaysAFenceByALimitFromTheFirstTimeOn(Waits given) {
        begin(given.prompt);
        long apartNs = LIMITS.fenceLimitNs() / ASKS_MAX;
        for (int ask = 0; ask < given.asks; ask++) {
            prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
            assertThat(prefiller.wire.closed).isFalse();
            nowNs += apartNs;
            prefiller.messenger.doWork();
        }
        nowNs += LIMITS.fenceLimitNs() - given.asks * apartNs;
        prefiller.messenger.doWork();

        assertThat(prefiller.wire.closed).isTrue();
    }

    /** Its writes are under way. */
    private void begin(Prompt prompt) {
        fetch("r", 1, LONG_NS);
        carry();
        compute("r", 0);
        if (prompt != Prompt.RUNNING) {
            end("r", PrefillOutcome.valueOf(prompt.name()), ContextSlots.NO_SLOT);
        }
        assertThat(prefiller.transfer.submitted).hasSizeGreaterThan(1);
    }
}
