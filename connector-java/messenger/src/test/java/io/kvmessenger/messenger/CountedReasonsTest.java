package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.FetchFailure;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.PrefillFailure;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** What a fetch or a prefill that ends without its KV is counted under, and the histograms of one that does not. */
class CountedReasonsTest extends MessengerPair {
    @BeforeEach
    void forget() {
        for (Side side : List.of(prefiller, decoder)) {
            side.tally.sums().clear();
            side.tally.reasons().clear();
        }
    }

    private void assertFailed(FetchFailure reason) {
        assertThat(decoder.tally.reasons()).containsExactly(Map.entry(reason, 1L));
        assertThat(decoder.tally.sum(MessengerMetric.FETCHES_FAILED)).isEqualTo(1);
    }

    private void assertUndelivered(PrefillFailure reason) {
        assertThat(prefiller.tally.reasons()).containsExactly(Map.entry(reason, 1L));
        assertThat(prefiller.tally.sum(MessengerMetric.PREFILLS_UNDELIVERED)).isEqualTo(1);
    }

    @ParameterizedTest
    @CsvSource({
        "NEVER_CAME, NEVER_CAME",
        "EXPIRED, EXPIRED",
        "PATH_LOST, PATH_LOST",
        "GRANT_UNFIT, UNGRANTABLE",
        "SHUTTING_DOWN, PREFILLER_STOPPING",
        "PREFILL_ABORTED, PREFILL_ABORTED",
        "REASON_UNSPECIFIED, PREFILL_ABORTED"
    })
    void shouldCountWhatThePrefillerSays(Reason given, FetchFailure counted) {
        fetch("r", 1, 0);
        carry();
        cannotDeliver(FIRST_GRANT, given);
        assertFailed(counted);
    }

    @Test
    void shouldCountAFetchWhoseTimeIsOver() {
        fetch("r", 1, 200);
        carry();
        nowNs += 200;
        carry();
        assertFailed(FetchFailure.TIME_LIMIT);
        prefiller.messenger.doWork();
    }

    @Test
    void shouldCountAFetchThatTheEngineGaveUpAndThePrefillThatItWasOf() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        carry();
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));
        assertFailed(FetchFailure.ABANDONED);
        assertUndelivered(PrefillFailure.UNWANTED);
    }

    @Test
    void shouldCountALostConnection() {
        fetch("r", 1, 0);
        carry();
        decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "closed by the peer");
        decoder.transfer.completions.add(
                handler -> handler.onAdmissionClosed(decoder.transfer.admitted.getLast(), "the peer has gone"));
        decoder.messenger.doWork();
        assertFailed(FetchFailure.CONNECTION_LOST);
    }

    @Test
    void shouldCountAPrefillThatItsEngineGaveUp() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.ABORTED));
        carry();
        assertUndelivered(PrefillFailure.ABORTED);
        assertFailed(FetchFailure.PREFILL_ABORTED);
    }

    @Test
    void shouldCountAPreemptedPrefill() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        assertUndelivered(PrefillFailure.PREEMPTED);
    }

    @Test
    void shouldCountAPrefillThatNothingAskedFor() {
        compute("r", 0);
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));
        nowNs += LIMITS.grantWaitNs();
        prefiller.messenger.doWork();
        assertUndelivered(PrefillFailure.EXPIRED);
    }

    @Test
    void shouldObserveThePartsOfATransferOnce() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        assertThat(decoder.tally.sum(MessengerMetric.GRANT_DELAY_SECONDS)).isEqualTo(1);
        assertThat(prefiller.tally.sum(MessengerMetric.GRANT_QUEUED_SECONDS)).isEqualTo(1);
        assertThat(prefiller.tally.sum(MessengerMetric.FIRST_WRITE_SECONDS)).isEqualTo(1);
    }
}
