package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.wire.CancelConfirmed;
import io.kvmessenger.messenger.wire.ControlFrame;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;

/** A decoder's pages are over when what was posted has been counted, not when the prefiller has said so. */
class CountingProofTest extends MessengerPair {
    private static final int TRANSFER_WINDOWS = 8;

    private void land() {
        prefiller.transfer.requests.forEach(decoder.transfer::land);
        nowNs += 1;
        carry();
    }

    /** All pages posted and completed at the prefiller, none of them counted at the decoder. */
    private void postAll() {
        landsLate = true;
        prefiller.transfer.requests.clear();
        fetch("r", 0, 0);
        carry();
        compute("r", 0);
        carry();
        assertThat(prefiller.transfer.requests).isNotEmpty();
    }

    private void completeAll() {
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();
    }

    @Test
    void shouldHoldItsPagesUntilWhatWasPostedHasBeenCounted() {
        postAll();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        carry();
        completeAll();
        assertThat(decoder.reported).as("completed is not delivered").isEmpty();
        assertThat(decoder.transfer.freeSlots).isEqualTo(TRANSFER_WINDOWS - 1);
        land();
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.transfer.freeSlots).isEqualTo(TRANSFER_WINDOWS);
    }

    @Test
    void shouldGrantAgainOnlyWhenTheLastLifesWritesHaveBeenCounted() {
        landsLate = true;
        fetch("r", 0, 0);
        carry();
        beginPass("r");
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        completeAll();
        int grants = decoder.transfer.windowCookies.size();
        assertThat(prefiller.transfer.requests).isNotEmpty();
        land();
        assertThat(decoder.transfer.windowCookies).as("a grant more").hasSize(grants + 1);
        assertThat(decoder.reported).isEmpty();
    }

    @Test
    void shouldSendTheNextAttemptAWordWhenTheFetchIsGivenUpMeanwhile() {
        landsLate = true;
        fetch("r", 0, 0);
        carry();
        beginPass("r");
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        completeAll();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        assertThat(decoder.wire.take()).anyMatch(ControlFrame::hasDecline);
        land();
        assertThat(decoder.reported).containsExactly("failed r");
    }

    @Test
    void shouldEndTheSessionOfAPrefillerWhoseWritesDoNotCome() {
        postAll();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        carry();
        completeAll();
        assertThatTheSessionEndsAtTheLimitAlthoughThePeerBeats();
        assertThat(decoder.reported).containsExactly("quarantined r");
    }

    @Test
    void shouldEndTheSessionOfAPrefillerThatDoesNotConfirmACancel() {
        postAll();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        carry(); // the prefiller's own writes do not complete: it has nothing to confirm yet
        assertThatTheSessionEndsAtTheLimitAlthoughThePeerBeats();
        assertThat(decoder.reported).containsExactly("quarantined r");
    }

    private void assertThatTheSessionEndsAtTheLimitAlthoughThePeerBeats() {
        for (long leftNs = LIMITS.silenceLimitNs(); leftNs > 0; leftNs -= LIMITS.heartbeatNs()) {
            assertThat(decoder.transfer.revoked).isEmpty();
            nowNs += LIMITS.heartbeatNs();
            carry();
        }
        assertThat(decoder.transfer.revoked).hasSize(1);
    }

    @Test
    void shouldEndTheSessionOfAPrefillerThatPostedLessThanArrived() {
        postAll();
        prefiller.transfer.requests.forEach(decoder.transfer::land);
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        decoder.messenger.onFrame(Wire.DIALLED_LINK, confirmed(1));
        assertThat(decoder.transfer.revoked).hasSize(1);
    }

    @Test
    void shouldEndTheSessionOfAPrefillerThatPostedMoreThanWasGranted() {
        postAll();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        decoder.messenger.onFrame(Wire.DIALLED_LINK, confirmed(1_000_000));
        assertThat(decoder.transfer.revoked).hasSize(1);
    }

    private ControlFrame confirmed(long postedWeight) {
        return ControlFrame.newBuilder()
                .setCancelConfirmed(
                        CancelConfirmed.newBuilder().setGrantId(FIRST_GRANT).setPostedWeight(postedWeight))
                .build();
    }
}
