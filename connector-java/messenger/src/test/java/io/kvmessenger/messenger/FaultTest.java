package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.catchThrowable;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;

/** What a messenger still does when a part of it, or the transfer engine below it, fails. */
class FaultTest extends MessengerPair {
    @Test
    void shouldGiveEveryPartItsTurnAlthoughOneThrows() {
        fetch("r", 1, LIMITS.fetchLimitNs());
        carry();
        nowNs += LIMITS.heartbeatNs();
        decoder.transfer.completions.add(handler -> {
            throw new IllegalStateException("a bug of a completion");
        });
        assertThatThrownBy(decoder.messenger::doWork).hasMessage("a bug of a completion");
        assertThat(decoder.wire.take()).anyMatch(ControlFrame::hasHeartbeat);
    }

    @Test
    void shouldEndASessionWhoseFrameMeetsABugAndNoOther() {
        fetch("r", 1, 0);
        prefiller.transfer.bugOfAllow = new IllegalStateException("a bug of a grant");
        compute("r", 0);
        Throwable thrown = catchThrowable(this::carry);

        assertThat(thrown).hasMessage("a bug of a grant");
        assertThat(prefiller.wire.closed).isTrue();
        assertThat(prefiller.tally.sum(MessengerMetric.FAULTS_CONTAINED)).isEqualTo(1);
        prefiller.messenger.doWork();
    }

    /** Its delivery has no window: a submit for it would be the next bug, and not confined to it. */
    @Test
    void shouldSubmitNothingForAGrantThatWasNeverAllowed() {
        compute("r", 0);
        fetch("r", 1, 0);
        prefiller.transfer.bugOfAllow = new IllegalStateException("a bug of a grant");
        assertThat(catchThrowable(this::carry)).hasMessage("a bug of a grant");
        prefiller.messenger.doWork();

        assertThat(prefiller.transfer.submitted).isEmpty();
        assertThat(prefiller.cache.held().writesInFlight()).isZero();
    }

    /** A write that was never accepted is not awaited: a drain would wait for it for ever. */
    @Test
    void shouldAwaitNoWriteWhoseSubmitHasThrown() {
        fetch("r", 1, 0);
        carry();
        prefiller.transfer.bugOfSubmit = new IllegalStateException("a bug of a submit");
        compute("r", 0);
        prefiller.messenger.doWork();

        assertThat(prefiller.tally.sum(MessengerMetric.FAULTS_CONTAINED)).isEqualTo(1);
        assertThat(prefiller.transfer.submitted).isEmpty();
        assertThat(prefiller.cache.held().writesInFlight()).isZero();
    }

    @Test
    void shouldFailTheFetchThatMeetsABugAndNoOther() {
        decoder.transfer.bugOfOpenWindow = new IllegalStateException("a bug of a window");
        fetch("broken", 1, LIMITS.fetchLimitNs());
        decoder.transfer.bugOfOpenWindow = null;
        fetch("sound", 3, LIMITS.fetchLimitNs());
        carry();

        assertThat(decoder.reported).containsExactly("failed broken");
        assertThat(decoder.lastFailure).contains("a bug in the messenger", "a bug of a window");
        assertThat(decoder.tally.sum(MessengerMetric.FAULTS_CONTAINED)).isEqualTo(1);
        compute("sound", 0);
        carry();
        assertThat(prefiller.transfer.submitted).isNotEmpty();
    }

    /** The engine waits for each fetch's end, also if its command fails before anything of it is kept. */
    @Test
    void shouldFailAFetchWhoseCommandFailsAndNoOther() {
        decoder.tally.bugs().put(MessengerMetric.FETCHES_STARTED, new OutOfMemoryError("at its first line"));
        assertThatThrownBy(() -> fetch("first", 1, 0)).hasMessage("at its first line");
        assertThat(decoder.reported).containsExactly("failed first");
        assertThat(decoder.lastFailure).contains("could not be begun", "at its first line");

        Side connected = decoder;
        decoder = new Side("decoder", 3, 0);
        decoder.wire.bugOfDial = new OutOfMemoryError("at its dial");
        assertThatThrownBy(() -> fetch("second", 1, 0)).hasMessage("at its dial");
        assertThat(decoder.reported).containsExactly("failed second");
        assertThat(decoder.cache.held().clean()).isTrue();

        decoder = connected;
        fetch("sound", 3, 0);
        carry();
        compute("sound", 0);
        carry();
        assertThat(prefiller.transfer.submitted).isNotEmpty();
    }

    /** An engine that has not heard of a release tells the end again, as often as it likes. */
    @Test
    void shouldReleaseAgainAPrefillWhoseEndIsReportedAgain() {
        compute("r", 0);
        end("r", EngineCommand.PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        nowNs += LIMITS.grantWaitNs() / 2;
        end("r", EngineCommand.PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        assertThat(prefiller.reported).isEmpty();
        nowNs += LIMITS.grantWaitNs() / 2 + 1;
        prefiller.messenger.doWork();
        assertThat(prefiller.reported).as("its own limit is not put off").containsExactly("released r");
        end("r", EngineCommand.PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        assertThat(prefiller.reported).containsExactly("released r", "released r");
        assertThat(prefiller.cache.held().clean()).isTrue();
    }

    @Test
    void shouldFailFetchesWhoseEndIsProvenWhenTheTransferEngineEnds() {
        fetch("granted", 1, 0);
        carry();
        decoder.transfer.completions.add(
                handler -> handler.onAdmissionClosed(decoder.transfer.admitted.getFirst(), "the engine ended"));
        end(decoder);

        assertThat(decoder.reported).containsExactly("failed granted");
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    @Test
    void shouldQuarantineWhatAPeerMayStillWriteToWhenTheTransferEngineEnds() {
        fetch("granted", 1, 0);
        carry();
        fetch("waiting", 3, 0);
        decoder.transfer.freeSlots = 0;
        end(decoder);

        assertThat(decoder.reported).contains("quarantined granted").doesNotContain("failed granted");
        assertThat(decoder.wire.take()).anyMatch(ControlFrame::hasGoodbye);
        assertThat(decoder.wire.closed).isTrue();
        assertThat(decoder.messenger.death()).get().asString().contains("out of memory, says the test");
    }

    @Test
    void shouldFailWhatIsAskedOfADeadMessengerAtOnce() {
        end(decoder);
        fetch("r", 1, 0);

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("until this engine is restarted");
    }

    @Test
    void shouldGiveAPrefillersPagesBackWhenItsTransferEngineEnds() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        assertThat(prefiller.transfer.submitted).isNotEmpty();
        end(prefiller);
        CompletableFuture<Void> fenced = new CompletableFuture<>();
        prefiller.cache.onCommand(new EngineCommand.Preempt(java.util.List.of("r"), fenced));
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));

        assertThat(fenced).isDone();
        assertThat(prefiller.reported).containsExactly("released r");
        assertThat(prefiller.cache.held().clean()).isTrue();

        compute("s", 0);
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("s", EngineCommand.PrefillOutcome.FINISHED));
        assertThat(prefiller.reported).containsExactly("released r", "released s");
    }

    /** Its transfer engine works: a write that is in flight reads the pages until it is complete. */
    @Test
    void shouldHoldAPrefillersPagesUntilItsWritesAreCompleteWhenTheControlNetworkEnds() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        assertThat(prefiller.transfer.submitted).isNotEmpty();
        prefiller.messenger.onControlEnded("says the test");
        prefiller.messenger.doWork();
        prefiller.cache.onCommand(new EngineCommand.PrefillEnded("r", EngineCommand.PrefillOutcome.FINISHED));
        prefiller.messenger.doWork();

        assertThat(prefiller.messenger.failure()).get().asString().contains("says the test", "restarted");
        assertThat(prefiller.reported).doesNotContain("released r");
        assertThat(prefiller.messenger.death()).isEmpty();

        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        prefiller.messenger.doWork();
        prefiller.messenger.doWork();
        assertThat(prefiller.reported).contains("released r");
        assertThat(prefiller.messenger.death()).isEqualTo(prefiller.messenger.failure());
    }

    @Test
    void shouldQuarantineWhatADecoderAwaitsWhenTheControlNetworkEnds() {
        fetch("granted", 1, 0);
        carry();
        fetch("waiting", 3, 0);
        decoder.messenger.onControlEnded("says the test");
        decoder.messenger.doWork();
        fetch("later", 5, 0);
        decoder.messenger.doWork();

        assertThat(decoder.reported).containsExactly("quarantined granted", "quarantined waiting", "failed later");
        assertThat(decoder.lastFailure).contains("says the test", "restarted");
        assertThat(decoder.messenger.death()).as("pages are held").isEmpty();
    }

    /** The transfer engine ends by an error of its own. */
    private static void end(Side side) {
        side.transfer.bug = new OutOfMemoryError("out of memory, says the test");
        while (side.messenger.death().isEmpty()) {
            var unused = catchThrowable(side.messenger::doWork);
        }
        side.messenger.doWork();
    }
}
