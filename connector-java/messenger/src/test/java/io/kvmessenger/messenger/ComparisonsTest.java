package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.ComparisonOutcome;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.MessengerMetric;
import org.junit.jupiter.api.Test;

/** What an engine needs for its verdict about a prefiller, and what is counted of its comparisons. */
class ComparisonsTest extends MessengerPair {
    private static final EngineCommand.PrefillerAddress ELSEWHERE =
            new EngineCommand.PrefillerAddress("elsewhere", 1, "");

    private static final EngineCommand.PrefillerAddress DIALLED = new EngineCommand.PrefillerAddress("host", 7, "");

    private void compared(ComparisonOutcome outcome, long differenceMillionths) {
        decoder.cache.onCommand(new EngineCommand.Compared(outcome, differenceMillionths, DIALLED));
    }

    @Test
    void shouldSayWhichProcessAnswersAtAnAddressBeforeAnythingArrivesFromIt() {
        fetch("r", 1, 0);
        carry();
        assertThat(decoder.connected).containsExactly("host:7 is 1 before 0 events");
        assertThat(prefiller.connected).isEmpty();
    }

    @Test
    void shouldCountOutcomesAndShowTheLastDifference() {
        fetch("r", 1, 0);
        carry();
        compared(ComparisonOutcome.EQUAL, 20_000);
        compared(ComparisonOutcome.DIFFERENT, 1_700_000);
        compared(ComparisonOutcome.EQUAL, 10);
        assertThat(decoder.tally.sum(ComparisonOutcome.EQUAL)).isEqualTo(2);
        assertThat(decoder.tally.sum(ComparisonOutcome.DIFFERENT)).isEqualTo(1);
        assertThat(decoder.tally.sum(MessengerMetric.LAST_TOKENS_COMPARED)).isEqualTo(3);
        assertThat(decoder.tally.gauges()).containsEntry(MessengerMetric.LAST_TOKEN_DIFFERENCE, 10L);
    }

    @Test
    void shouldForgetTheDifferenceOfAPrefillerThatIsGone() {
        fetch("r", 1, 0);
        carry();
        compared(ComparisonOutcome.DIFFERENT, 5);
        decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "closed by the peer");
        assertThat(decoder.tally.gauges()).containsEntry(MessengerMetric.LAST_TOKEN_DIFFERENCE, 0L);
        compared(ComparisonOutcome.EQUAL, 3);
        assertThat(decoder.tally.gauges()).containsEntry(MessengerMetric.LAST_TOKEN_DIFFERENCE, 0L);
        assertThat(decoder.tally.sum(ComparisonOutcome.EQUAL)).isEqualTo(1);
    }

    @Test
    void shouldDialNothingToCount() {
        decoder.cache.onCommand(new EngineCommand.Compared(ComparisonOutcome.UNJUDGED, 0, ELSEWHERE));
        decoder.cache.onCommand(new EngineCommand.Refuted(3));
        carry();
        assertThat(decoder.connected).as("the prefiller of the set-up alone").hasSize(1);
        assertThat(decoder.tally.sum(ComparisonOutcome.UNJUDGED)).isEqualTo(1);
        assertThat(decoder.tally.sum(MessengerMetric.FETCHES_REFUTED)).isEqualTo(3);
    }
}
