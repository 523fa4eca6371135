package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.Predicate;
import org.junit.jupiter.api.Test;

/** A prompt was preempted: its pages are granted once more if they are still wanted and missing, and never else. */
class RegrantTest extends ComparingPair {
    @Test
    void shouldNotGrantPagesOfARequestThatIsGone() {
        fetch("r", 1, 0);
        carry();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        assertThat(decoder.wire.take()).anyMatch(ControlFrame::hasCancel); // it crosses the word of the preemption
        cannotDeliver(FIRST_GRANT, CannotDeliver.Reason.PREEMPTED);
        decoder.messenger.doWork();

        assertThat(decoder.wire.take()).noneMatch(ControlFrame::hasGrant);
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    @Test
    void shouldNotGrantPagesOfARequestThatIsGoneWhileItWaitsForASlot() {
        decoder.transfer.freeSlots = 1;
        fetch("first", 1, 0);
        fetch("gone", 3, 0);
        fetch("next", 5, 0);
        decoder.cache.onCommand(new EngineCommand.Abandon("gone"));
        decoder.wire.take();
        cannotDeliver(FIRST_GRANT, CannotDeliver.Reason.PREFILL_ABORTED);
        decoder.messenger.doWork();

        assertThat(decoder.wire.take())
                .filteredOn(ControlFrame::hasGrant)
                .singleElement()
                .matches(frame -> frame.getGrant().getTransferId().equals("t-next"));
    }

    @Test
    void shouldNotLetThePrefillerComputeThePromptOfADecoderFirstRequestTwice() {
        fetch("r", 1, 0, new int[PROMPT_TOKENS]);
        decoder.messenger.doWork();
        assertThat(takeGrants()).allMatch(frame -> frame.getGrant().hasPrompt());
        cannotDeliver(FIRST_GRANT, CannotDeliver.Reason.PREEMPTED);

        assertThat(takeGrants())
                .singleElement()
                .matches(Predicate.not(frame -> frame.getGrant().hasPrompt()));
    }

    @Test
    void shouldNotGrantAgainWhatIsHereAndSummed() {
        send("r");
        prefiller.wire.take().forEach(frame -> decoder.messenger.onFrame(Wire.DIALLED_LINK, frame));
        preempted();

        assertThat(decoder.wire.take()).noneMatch(ControlFrame::hasGrant).anyMatch(ControlFrame::hasDecline);
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("arrived r");
        assertThat(decoder.tally.sum(MessengerMetric.FETCHES_REGRANTED)).isZero();
    }

    /** Without the sums of the first attempt its pages cannot be compared, though all of them are here. */
    @Test
    void shouldGrantAgainWhatIsHereAndWasNeverSummed() {
        send("r");
        prefiller.wire.take();
        fill();
        preempted();

        assertThat(decoder.reported).isEmpty();
        assertThat(takeGrants()).hasSize(1);
        assertThat(decoder.tally.sum(MessengerMetric.FETCHES_REGRANTED)).isEqualTo(1);
    }

    @Test
    void shouldEndTheSessionOfAPeerThatSumsMoreThanItWasGranted() {
        send("r");
        List<ControlFrame> sums = prefiller.wire.take();
        sums.forEach(frame -> decoder.messenger.onFrame(Wire.DIALLED_LINK, frame));
        assertThat(decoder.wire.closed).isFalse();
        sums.forEach(frame -> decoder.messenger.onFrame(Wire.DIALLED_LINK, frame));

        assertThat(decoder.wire.closed).isTrue();
        assertThat(decoder.tally.sum(MessengerMetric.FRAMES_INVALID)).isEqualTo(1);
    }

    /** The word that a cancel was not confirmed must not wait for the next heartbeat. */
    @Test
    void shouldLookAtACancelWhenItsLimitIsOver() {
        fetch("r", 1, 0);
        carry();
        nowNs += LIMITS.heartbeatNs() / 3;
        carry();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        decoder.wire.take();
        long dueNs = nowNs + LIMITS.silenceLimitNs();
        for (nowNs += LIMITS.heartbeatNs(); nowNs - dueNs < 0; nowNs += LIMITS.heartbeatNs() / 3) {
            carry();
            assertThat(decoder.messenger.nextDeadlineNs()).isLessThanOrEqualTo(dueNs);
        }
        nowNs = dueNs;
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("quarantined r");
    }

    private void preempted() {
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        decoder.messenger.onFrame(
                Wire.DIALLED_LINK,
                ControlFrame.newBuilder()
                        .setCannotDeliver(CannotDeliver.newBuilder()
                                .setTransferId("t-r")
                                .setGrantId(FIRST_GRANT)
                                .setReason(CannotDeliver.Reason.PREEMPTED)
                                .setPostedWeight(decoder.transfer.windowWeights.getLast()))
                        .build());
    }

    private List<ControlFrame> takeGrants() {
        return decoder.wire.take().stream().filter(ControlFrame::hasGrant).toList();
    }
}
