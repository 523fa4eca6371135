package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.wire.Cancel;
import io.kvmessenger.messenger.wire.CancelConfirmed;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Grant;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** A frame means a grant by its id, whatever immediates there are: here all grants of a decoder have the same one. */
class GrantIdTest extends MessengerPair {
    @BeforeEach
    void repeatOneImmediate() {
        decoder.transfer.repeatsImm = true;
    }

    /** The grant of a request is preempted, and the decoder has granted again. */
    private void grantTwice(String request) {
        fetch(request, 1, 0);
        carry();
        beginStep(new EngineCommand.Chunk(request, "t-" + request, PROMPT_TOKENS, 0, 0, 1, 0, new int[] {5}));
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of(request), new CompletableFuture<>()));
        carry();
        assertThat(decoder.tally.sum(MessengerMetric.FETCHES_REGRANTED)).isEqualTo(1);
    }

    private void assertSecondGrantIsServed() {
        assertThat(decoder.reported).isEmpty();
        assertThat(decoder.wire.closed).isFalse();
        compute("r", 0);
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        decoder.transfer.completions.add(handler -> handler.onWindowFilled(decoder.transfer.windowCookies.getLast()));
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("arrived r");
    }

    private void answer(ControlFrame.Builder frame) {
        decoder.messenger.onFrame(Wire.DIALLED_LINK, frame.build());
        decoder.messenger.doWork();
    }

    @Test
    void shouldNameEachGrantByAnIdAboveAllBefore() {
        for (String request : List.of("a", "b", "c")) {
            fetch(request, 1, 0);
        }
        decoder.messenger.doWork();
        List<Grant> grants = decoder.wire.take().stream()
                .filter(ControlFrame::hasGrant)
                .map(ControlFrame::getGrant)
                .toList();
        assertThat(grants).extracting(Grant::getGrantId).containsExactly(2L, 3L, 4L);
        assertThat(grants)
                .extracting(Grant::getImm)
                .containsOnly(grants.getFirst().getImm());
    }

    @Test
    void shouldTakeNoLateConfirmationForOneOfTheNextGrant() {
        grantTwice("r");
        answer(ControlFrame.newBuilder()
                .setCancelConfirmed(
                        CancelConfirmed.newBuilder().setGrantId(FIRST_GRANT).setPostedWeight(0)));
        assertSecondGrantIsServed();
    }

    @Test
    void shouldTakeNoLateRefusalForOneOfTheNextGrant() {
        grantTwice("r");
        cannotDeliver(FIRST_GRANT, CannotDeliver.Reason.PREFILL_ABORTED);
        decoder.messenger.doWork();
        assertSecondGrantIsServed();
    }

    /** The window of the first grant was filled when it was closed already. */
    @Test
    void shouldTakeNoLateCompletionForOneOfTheNextGrant() {
        grantTwice("r");
        decoder.transfer.completions.add(handler -> handler.onWindowFilled(FIRST_GRANT));
        decoder.transfer.completions.add(handler -> handler.onWindowOvershot(FIRST_GRANT, 9, 8));
        decoder.messenger.doWork();
        assertSecondGrantIsServed();
    }

    @Test
    void shouldIgnoreReportsOfAGrantThatNeverWas() {
        fetch("r", 1, 0);
        carry();
        answer(ControlFrame.newBuilder()
                .setCancelConfirmed(CancelConfirmed.newBuilder().setGrantId(77).setPostedWeight(0)));
        answer(ControlFrame.newBuilder()
                .setChecksums(Checksums.newBuilder().setGrantId(77).addWrites(Checksums.Write.newBuilder())));
        assertSecondGrantIsServed();
    }

    /** The other prompt's writes are still read, and its immediate is the same. */
    @Test
    void shouldAnswerACancelWhileAnotherGrantIsFenced() {
        landsLate = true;
        fetch("busy", 1, 0);
        carry();
        beginPass("busy");
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("busy"), new CompletableFuture<>()));
        fetch("other", 3, 0);
        carry();
        prefiller.messenger.onFrame(
                Wire.DIALLED_LINK,
                ControlFrame.newBuilder()
                        .setCancel(Cancel.newBuilder().setTransferId("t-other").setGrantId(FIRST_GRANT + 1))
                        .build());
        assertThat(prefiller.wire.take())
                .filteredOn(ControlFrame::hasCancelConfirmed)
                .extracting(frame -> frame.getCancelConfirmed().getGrantId())
                .containsExactly(FIRST_GRANT + 1);
    }

    @Test
    void shouldStopTheGrantThatIsCancelledAndNoOther() {
        fetch("a", 1, 0);
        fetch("b", 3, 0);
        carry();
        decoder.cache.onCommand(new EngineCommand.Abandon("a"));
        carry();
        assertThat(decoder.reported).containsExactly("failed a");
        compute("b", 0);
        assertThat(prefiller.transfer.submitted).isNotEmpty();
    }

    /** An answer to one of two grants with one id would be taken for one to the other. */
    @Test
    void shouldEndTheSessionOfADecoderThatNamesTwoGrantsAlike() {
        fetch("r", 1, 0);
        decoder.messenger.doWork();
        ControlFrame grant = decoder.wire.take().stream()
                .filter(ControlFrame::hasGrant)
                .findFirst()
                .orElseThrow();
        prefiller.messenger.onFrame(Wire.DIALLED_LINK, grant);
        prefiller.messenger.doWork();
        assertThat(prefiller.wire.closed).isFalse();
        prefiller.messenger.onFrame(Wire.DIALLED_LINK, grant);
        prefiller.messenger.doWork();
        assertThat(prefiller.wire.closed).isTrue();
        assertThat(prefiller.tally.sum(MessengerMetric.FRAMES_INVALID)).isEqualTo(1);
    }

    @Test
    void shouldEndTheSessionOfADecoderThatNamesAGrantByNothing() {
        ControlFrame grant = ControlFrame.newBuilder()
                .setGrant(Grant.newBuilder().setTransferId("t"))
                .build();
        prefiller.messenger.onFrame(Wire.DIALLED_LINK, grant);
        prefiller.messenger.doWork();
        assertThat(prefiller.wire.closed).isTrue();
    }

    /** A grant that names a page twice is answered when its prefill is there: until then its area is not computed. */
    @Test
    void shouldDeclineAGrantThatNamesAPageTwice() {
        fetch("r", 1, 0);
        decoder.messenger.doWork();
        ControlFrame frame = decoder.wire.take().stream()
                .filter(ControlFrame::hasGrant)
                .findFirst()
                .orElseThrow();
        Grant.Builder twice = frame.getGrant().toBuilder();
        twice.setGroups(0, Grant.PageList.newBuilder().addPageIndices(1).addPageIndices(1));
        prefiller.messenger.onFrame(
                Wire.DIALLED_LINK, frame.toBuilder().setGrant(twice).build());
        prefiller.messenger.doWork();
        assertThat(prefiller.wire.sent.stream().filter(ControlFrame::hasCannotDeliver))
                .isEmpty();
        compute("r", 0);
        List<CannotDeliver> declined = prefiller.wire.take().stream()
                .filter(ControlFrame::hasCannotDeliver)
                .map(ControlFrame::getCannotDeliver)
                .toList();
        assertThat(declined).hasSize(1);
        assertThat(declined.getFirst().getReason()).isEqualTo(CannotDeliver.Reason.GRANT_UNFIT);
        assertThat(declined.getFirst().getSentence()).startsWith("the grant of transfer t-r cannot be written to: ");
        assertThat(prefiller.transfer.submitted).isEmpty();
    }
}
