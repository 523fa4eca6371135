package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.session.PeerText;
import io.kvmessenger.messenger.wire.CannotDeliver;
import org.junit.jupiter.api.Test;

/** What is made of a peer's sentences before they reach an event or a log. */
class PeerTextTest extends MessengerPair {
    @Test
    void shouldShowOneLineOfLimitedLength() {
        assertThat(PeerText.oneLine("two\nlines\u001B[31m")).isEqualTo("two lines [31m");
        assertThat(PeerText.oneLine("x".repeat(1 << 20))).hasSize(PeerText.SENTENCE_LENGTH_MAX);
    }

    @Test
    void shouldNotCutACharacterInTwo() {
        String cut = PeerText.oneLine("x" + "\uD83D\uDE00".repeat(PeerText.SENTENCE_LENGTH_MAX));

        assertThat(cut.chars().filter(c -> Character.isHighSurrogate((char) c)).count())
                .isEqualTo(cut.chars()
                        .filter(c -> Character.isLowSurrogate((char) c))
                        .count());
    }

    @Test
    void shouldCutThePrefillersReasonForNotDelivering() {
        fetch("r", 1, 0);
        carry();
        cannotDeliver(FIRST_GRANT, CannotDeliver.Reason.PREFILL_ABORTED, "a long\nsentence ".repeat(100_000));

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).hasSize(PeerText.SENTENCE_LENGTH_MAX).doesNotContain("\n");
    }
}
