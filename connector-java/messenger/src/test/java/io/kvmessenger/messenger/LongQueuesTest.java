package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.function.IntConsumer;
import org.junit.jupiter.api.Test;

/** What a duty cycle looks at, counted: it must not grow with the requests that wait. */
class LongQueuesTest extends MessengerPair {
    private static final int QUEUED = 10_000;
    private static final int CYCLES = 100;

    private void each(IntConsumer request) {
        for (int i = 0; i < QUEUED; i++) {
            request.accept(i);
        }
        carry();
        carry(); // what the first duty cycle finds at rest it looks at once
    }

    /** Requests that duty cycles of both sides look at, deadlines and gauges included. */
    private long looksOfCycles() {
        long before = prefiller.cache.visits() + decoder.cache.visits();
        for (int cycle = 0; cycle < CYCLES; cycle++) {
            doWork(prefiller);
            doWork(decoder);
        }
        return prefiller.cache.visits() + decoder.cache.visits() - before;
    }

    private static void doWork(Side side) {
        side.messenger.onGarbage(); // counted, and harmless
        side.messenger.doWork();
        side.messenger.nextDeadlineNs();
        side.cache.held();
    }

    @Test
    void shouldLookAtNothingThatWaitsInBothQueues() {
        decoder.transfer.freeSlots = 4000;
        each(i -> announce("r" + i));
        each(i -> fetch("r" + i, 1, 0));
        assertThat(prefiller.cache.held().prefills()).isEqualTo(QUEUED);
        assertThat(decoder.cache.held().windowsOpen()).isEqualTo(4000);

        assertThat(looksOfCycles()).as("the first that waits for a slot").isEqualTo(CYCLES);

        beginPass("r7");
        assertThat(looksOfCycles()).as("and one that is computed").isEqualTo(2 * CYCLES);
    }

    @Test
    void shouldLookAtFinishedPromptsWhenTheirTimeIsOver() {
        each(i -> {
            reportComputed("r" + i, PROMPT_TOKENS, PROMPT_TOKENS, 0, 5, 6);
            end("r" + i, PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        });
        assertThat(prefiller.messenger.nextDeadlineNs()).isEqualTo(nowNs + LIMITS.heartbeatNs());
        assertThat(looksOfCycles()).isZero();

        nowNs += LIMITS.grantWaitNs() - 1;
        prefiller.messenger.doWork();
        assertThat(prefiller.reported).isEmpty();
        nowNs++;
        prefiller.messenger.doWork();
        assertThat(prefiller.reported).hasSize(QUEUED).startsWith("released r0", "released r1");
    }

    @Test
    void shouldLookAtTheFirstOfTheFetchesThatWaitForASlot() {
        decoder.transfer.freeSlots = 0;
        each(i -> fetch("r" + i, 1, 0));
        assertThat(looksOfCycles()).isEqualTo(CYCLES);

        decoder.transfer.freeSlots = 2;
        decoder.messenger.doWork();
        assertThat(decoder.wire.take())
                .extracting(frame -> frame.getGrant().getTransferId())
                .containsExactly("t-r0", "t-r1");
        decoder.cache.onCommand(new EngineCommand.Abandon("r2"));
        decoder.transfer.freeSlots = 1;
        decoder.messenger.doWork();
        assertThat(decoder.wire.take())
                .extracting(frame -> frame.getGrant().getTransferId())
                .contains("t-r3")
                .doesNotContain("t-r2");
    }

    @Test
    void shouldEndFetchesInTheOrderOfTheirLimits() {
        each(i -> fetch("r" + i, 1, 50 + QUEUED - i));
        nowNs += 50;
        assertThat(looksOfCycles()).as("the first that waits for a slot").isEqualTo(CYCLES);
        assertThat(decoder.reported).isEmpty();
        nowNs += 2;
        decoder.messenger.doWork();
        assertThat(decoder.reported).hasSize(2).startsWith("failed r" + (QUEUED - 1));
    }
}
