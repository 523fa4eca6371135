package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Goodbye;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Control and data are two channels: what the end of a session says of KV that was on its way is nothing. */
class SessionEndVerdictTest extends MessengerPair {
    /** How a session ends, at a decoder. */
    enum End {
        GOODBYE,
        LINK_CLOSED,
        SILENCE,
        FRAME_OUT_OF_PLACE,
        DATA_PATHS_LOST
    }

    /** How the decoder learns that the last write is here. */
    enum Counted {
        BEFORE_THE_END_AND_REPORTED_AFTER_IT,
        AFTER_THE_END,
        BY_THE_END_OF_THE_DATA_PATHS
    }

    static List<Arguments> endsAndCounts() {
        List<Arguments> all = new ArrayList<>();
        for (End end : End.values()) {
            for (Counted counted : Counted.values()) {
                if (end != End.DATA_PATHS_LOST || counted == Counted.BEFORE_THE_END_AND_REPORTED_AFTER_IT) {
                    all.add(Arguments.of(end, counted));
                }
            }
        }
        return all;
    }

    @ParameterizedTest
    @MethodSource("endsAndCounts")
    void shouldArriveWhenAllOfItHadLeft(End end, Counted counted) {
        postAll("r", 1);
        if (counted == Counted.BEFORE_THE_END_AND_REPORTED_AFTER_IT) {
            landAll();
        }
        end(end);
        if (counted != Counted.BEFORE_THE_END_AND_REPORTED_AFTER_IT) {
            assertThat(decoder.reported).isEmpty();
            assertThat(decoder.transfer.revoked).isEmpty();
            landAll();
        }
        if (counted == Counted.BY_THE_END_OF_THE_DATA_PATHS) {
            closeAdmission();
        } else {
            reportFilled();
            assertThat(decoder.transfer.revoked).hasSize(end == End.DATA_PATHS_LOST ? 0 : 1);
        }

        assertThat(decoder.reported).containsExactly("arrived r");
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    @ParameterizedTest
    @EnumSource(End.class)
    void shouldFailWithoutQuarantineWhenTheDataPathsEndBeforeAllIsHere(End end) {
        postAll("r", 1);
        decoder.transfer.land(prefiller.transfer.requests.getFirst());
        end(end);
        assertThat(decoder.reported).isEmpty();
        if (end == End.DATA_PATHS_LOST) {
            nowNs += LIMITS.lastWordWaitNs();
            decoder.messenger.doWork();
        } else {
            closeAdmission();
        }

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    /** That is what an operator can do something about. */
    @Test
    void shouldFailForTheReasonOfItsSessionAndNotForTheEndOfTheDataPaths() {
        postAll("r", 1);
        end(End.GOODBYE);
        closeAdmission();

        assertThat(decoder.lastFailure).contains("the engine is shutting down").doesNotContain("the peer has gone");
    }

    /** The transfer engine knows whether it has. */
    @Test
    void shouldNotWaitForAPrefillerThatHasNeverOpenedADataPath() {
        postAll("r", 1);
        end(End.GOODBYE);

        assertThat(decoder.transfer.revokedIfUnused).isEqualTo(decoder.transfer.admitted);
        assertThat(decoder.transfer.revoked).isEmpty();
    }

    /** Its checksums come by the link that is closed. */
    @Test
    void shouldNotWaitForKvThatCanNeverBeCompared() {
        prefiller = new Side("prefiller", 1, 0, ChecksumMode.FULL);
        decoder = new Side("decoder", 2, 0, ChecksumMode.FULL);
        fetch("warm-up", 1, 0);
        meet();
        postAll("r", 1);
        end(End.GOODBYE);

        assertThat(decoder.reported).containsExactly("quarantined r");
        assertThat(decoder.transfer.revoked).hasSize(1);
        landAll();
        closeAdmission();
        assertThat(decoder.reported).containsExactly("quarantined r", "failed r");
    }

    @ParameterizedTest
    @EnumSource(value = End.class, names = "DATA_PATHS_LOST", mode = EnumSource.Mode.EXCLUDE)
    void shouldNotLetTheEngineWaitForAPrefillerThatHasStopped(End end) {
        postAll("r", 1);
        end(end);
        long limitNs = LIMITS.verdictLimitNs(end == End.SILENCE ? LIMITS.lostAfterNs() : 0);
        assertThat(limitNs).isBetween(LIMITS.silenceLimitNs() / 5, LIMITS.silenceLimitNs());
        assertThat(decoder.messenger.nextDeadlineNs()).isLessThanOrEqualTo(nowNs + limitNs);
        nowNs += limitNs - 1;
        decoder.messenger.doWork();
        assertThat(decoder.reported).isEmpty();
        nowNs += 1;
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("quarantined r");
        assertThat(decoder.cache.held().quarantinedPages()).isEqualTo(2);
        assertThat(decoder.transfer.revoked).hasSize(1);
        landAll();
        closeAdmission();
        assertThat(decoder.reported).containsExactly("quarantined r", "failed r");
    }

    @Test
    void shouldRevokeOnlyWhenEachOfSeveralIsDecided() {
        postAll("r", 1);
        List<TransferRequest> first = List.copyOf(prefiller.transfer.requests);
        postAll("s", 3);
        end(End.GOODBYE);
        first.forEach(decoder.transfer::land);
        long filled = decoder.transfer.windowCookies.get(decoder.transfer.windowCookies.size() - 2);
        decoder.transfer.completions.add(handler -> handler.onWindowFilled(filled));
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("arrived r");
        assertThat(decoder.transfer.revoked).isEmpty();
        closeAdmission();
        assertThat(decoder.reported).containsExactly("arrived r", "failed s");
    }

    /** Its pages go back with the proof, which the engine need not wait for. */
    @Test
    void shouldQuarantineAtOnceWhatTheEngineGivesUpMeanwhile() {
        postAll("r", 1);
        end(End.LINK_CLOSED);
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        assertThat(decoder.reported).containsExactly("quarantined r");
        assertThat(decoder.transfer.revoked).hasSize(1);
        landAll();
        reportFilled();
        assertThat(decoder.reported).containsExactly("quarantined r", "failed r");
    }

    @Test
    void shouldEndAtItsOwnLimitIfThatIsOverFirst() {
        fetch("r", 1, LIMITS.silenceLimitNs() / 2);
        carry();
        end(End.GOODBYE);
        nowNs += LIMITS.silenceLimitNs() / 2;
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("quarantined r");
        closeAdmission();
        assertThat(decoder.lastFailure).contains("fetch_limit_seconds");
    }

    @Test
    void shouldNotArriveWhenMoreIsCountedThanWasGranted() {
        postAll("r", 1);
        end(End.GOODBYE);
        long cookie = decoder.transfer.windowCookies.getLast();
        decoder.transfer.completions.add(handler -> handler.onWindowOvershot(cookie, 9, 8));
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("quarantined r");
        closeAdmission();
        assertThat(decoder.reported).containsExactly("quarantined r", "failed r");
    }

    /** The word of a preemption came, and it would be granted again: but all of the first attempt was posted. */
    @Test
    void shouldArriveWhenAPreemptedPromptHadLeftAltogether() {
        postAll("r", 1);
        preempted(decoder.transfer.windowWeights.getLast());
        end(End.GOODBYE);
        assertThat(decoder.reported).isEmpty();
        landAll();
        closeAdmission();
        assertThat(decoder.reported).containsExactly("arrived r");
    }

    @Test
    void shouldFailAtOnceWhenTheRestOfAPreemptedPromptWillNeverCome() {
        postAll("r", 1);
        preempted(decoder.transfer.windowWeights.getLast() - 1);
        end(End.GOODBYE);
        assertThat(decoder.reported).containsExactly("quarantined r");
        assertThat(decoder.transfer.revoked).hasSize(1);
    }

    @Test
    void shouldEndTheOtherFetchesWhenTheEngineFailsAtTheReportOfOne() {
        postAll("r", 1);
        postAll("s", 3);
        end(End.GOODBYE);
        decoder.failsAtReportOf = "r";
        nowNs += LIMITS.silenceLimitNs();
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("quarantined s");
        decoder.failsAtReportOf = "";
        closeAdmission();
        assertThat(decoder.reported).containsExactly("quarantined s", "failed r", "failed s");
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    @Test
    void shouldFailAtOnceWhatWasNeverGranted() {
        decoder.transfer.freeSlots = 0;
        fetch("r", 1, 0);
        carry();
        end(End.GOODBYE);
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.transfer.revoked).hasSize(1);
    }

    // ---- the prefiller's half: the control link of a decoder ends while the last writes complete

    @Test
    void shouldHaveSentWhatCompletesAfterTheSession() {
        postAnnounced();
        prefiller.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");
        while (!prefiller.transfer.submitted.isEmpty()) {
            assertThat(prefiller.reported).noneMatch(event -> event.startsWith("released"));
            completeOneWrite();
        }
        assertThat(prefiller.reported).doesNotContain("stopped r").endsWith("released r");
        assertThat(prefiller.cache.held().clean()).isTrue();
    }

    @Test
    void shouldStopWhatDoesNotCompleteAfterTheSession() {
        postAnnounced();
        prefiller.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");
        for (long cookie : prefiller.transfer.submitted) {
            prefiller.transfer.completions.add(
                    handler -> handler.onWriteFailed(cookie, TransferFault.DISCONNECTED, "disconnected"));
        }
        prefiller.messenger.doWork();
        assertThat(prefiller.reported).containsSubsequence("stopped r", "released r");
        assertThat(prefiller.cache.held().clean()).isTrue();
    }

    private void postAnnounced() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        reportComputed("r", PROMPT_TOKENS, PROMPT_TOKENS, 0, 5, 6);
        end("r", EngineCommand.PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        assertThat(prefiller.transfer.submitted).isNotEmpty();
    }

    /** All pages of the request are posted, and none of them is counted. */
    private void postAll(String request, int firstPage) {
        landsLate = true;
        prefiller.transfer.requests.clear();
        fetch(request, firstPage, 0);
        carry();
        compute(request, 0);
        carry();
        assertThat(prefiller.transfer.requests).isNotEmpty();
    }

    private void landAll() {
        prefiller.transfer.requests.forEach(decoder.transfer::land);
    }

    private void reportFilled() {
        long cookie = decoder.transfer.windowCookies.getLast();
        decoder.transfer.completions.add(handler -> handler.onWindowFilled(cookie));
        decoder.messenger.doWork();
    }

    private void closeAdmission() {
        decoder.transfer.completions.add(
                handler -> handler.onAdmissionClosed(decoder.transfer.admitted.getLast(), "the peer has gone"));
        decoder.messenger.doWork();
    }

    private void preempted(long postedWeight) {
        decoder.messenger.onFrame(
                Wire.DIALLED_LINK,
                ControlFrame.newBuilder()
                        .setCannotDeliver(CannotDeliver.newBuilder()
                                .setTransferId("t-r")
                                .setGrantId(FIRST_GRANT)
                                .setReason(CannotDeliver.Reason.PREEMPTED)
                                .setPostedWeight(postedWeight))
                        .build());
    }

    private void end(End end) {
        switch (end) {
            case GOODBYE ->
                decoder.messenger.onFrame(
                        Wire.DIALLED_LINK,
                        ControlFrame.newBuilder()
                                .setGoodbye(Goodbye.newBuilder().setSentence("the engine is shutting down"))
                                .build());
            case LINK_CLOSED -> decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "closed by the peer");
            case SILENCE -> {
                nowNs += LIMITS.lostAfterNs();
                decoder.messenger.doWork();
            }
            case FRAME_OUT_OF_PLACE -> decoder.messenger.onFrame(Wire.DIALLED_LINK, ControlFrame.getDefaultInstance());
            case DATA_PATHS_LOST -> closeAdmission();
        }
    }
}
