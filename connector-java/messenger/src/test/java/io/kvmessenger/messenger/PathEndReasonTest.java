package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.FetchFailure;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.wire.Cancel;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Goodbye;
import io.kvmessenger.messenger.wire.Refusal;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.TransferFault;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * A transfer fails for the reason that its peer gives, whichever of the two channels ends first: the end of the data
 * paths hides none that is on its way, and waits for none for longer than a limit.
 */
class PathEndReasonTest extends MessengerPair {
    private static final String SENTENCE = "the reason that only the peer knows";
    private static final String PATH_DETAIL = "the path broke";
    /** With these the peer has ended the data paths; it may have given the reason. */
    private static final Set<TransferFault> BY_PEER =
            Set.of(TransferFault.PEER_CLOSED, TransferFault.NOT_ADMITTED, TransferFault.WRITE_REFUSED);

    /** What the control link brings, and what the engine has to be given of it. */
    private record Word(String name, ControlFrame frame, String expected) {
        @Override
        public String toString() {
            return name;
        }
    }

    private enum First {
        CONTROL,
        DATA
    }

    /** How a prefiller's transfer engine reports the end of the data paths to a decoder. */
    private enum PathEnd {
        PEER_LOST,
        WRITE_FAILED_AND_PEER_LOST,
        PEER_LOST_AND_WRITE_FAILED
    }

    record DecoderCase(Word word, First first) {}

    record PrefillerCase(Word word, First first, PathEnd pathEnd, TransferFault fault) {}

    private static List<Word> wordsOfBoth() {
        return List.of(
                new Word(
                        "Goodbye",
                        ControlFrame.newBuilder()
                                .setGoodbye(Goodbye.newBuilder().setSentence(SENTENCE))
                                .build(),
                        SENTENCE),
                new Word(
                        "Refusal",
                        ControlFrame.newBuilder()
                                .setRefusal(Refusal.newBuilder().setField("f").setSentence(SENTENCE))
                                .build(),
                        SENTENCE));
    }

    private static Word cannotDeliver(CannotDeliver.Reason reason) {
        return new Word(
                "CannotDeliver " + reason,
                ControlFrame.newBuilder()
                        .setCannotDeliver(CannotDeliver.newBuilder()
                                .setTransferId("t-r")
                                .setGrantId(FIRST_GRANT)
                                .setReason(reason)
                                .setSentence(SENTENCE))
                        .build(),
                SENTENCE);
    }

    /** After PREEMPTED, which is no reason of a failure, more of the transfer comes. */
    private static List<Word> wordsOfPrefiller() {
        List<Word> words = new ArrayList<>(wordsOfBoth());
        Arrays.stream(CannotDeliver.Reason.values())
                .filter(reason ->
                        reason != CannotDeliver.Reason.UNRECOGNIZED && reason != CannotDeliver.Reason.PREEMPTED)
                .forEach(reason -> words.add(cannotDeliver(reason)));
        return words;
    }

    private static List<Word> wordsOfDecoder() {
        List<Word> words = new ArrayList<>(wordsOfBoth());
        words.add(new Word(
                "Cancel",
                ControlFrame.newBuilder()
                        .setCancel(Cancel.newBuilder().setTransferId("t-r").setGrantId(FIRST_GRANT))
                        .build(),
                "the decoder cancelled the transfer"));
        return words;
    }

    static List<DecoderCase> decoderCases() {
        List<DecoderCase> cases = new ArrayList<>();
        for (Word word : wordsOfPrefiller()) {
            for (First first : First.values()) {
                cases.add(new DecoderCase(word, first));
            }
        }
        return cases;
    }

    static List<PrefillerCase> prefillerCases() {
        List<PrefillerCase> cases = new ArrayList<>();
        for (Word word : wordsOfDecoder()) {
            for (First first : First.values()) {
                for (PathEnd pathEnd : PathEnd.values()) {
                    BY_PEER.forEach(fault -> cases.add(new PrefillerCase(word, first, pathEnd, fault)));
                }
            }
        }
        return cases;
    }

    // ---- a decoder, whose admission closes

    @ParameterizedTest
    @MethodSource("decoderCases")
    void shouldFailAFetchForThePrefillersReason(DecoderCase at) {
        granted();
        if (at.first == First.CONTROL) {
            decoder.messenger.onFrame(Wire.DIALLED_LINK, at.word.frame);
            closeAdmission();
        } else {
            closeAdmission();
            assertThat(decoder.reported).isEmpty();
            assertThat(decoder.wire.take()).as("it has no reason of its own").isEmpty();
            decoder.messenger.onFrame(Wire.DIALLED_LINK, at.word.frame);
        }
        decoder.messenger.doWork();

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains(at.word.expected);
        if (at.first == First.DATA) {
            assertThat(decoder.lastFailure)
                    .endsWith("before that, the data paths from prefiller at host:7 ended: " + PATH_DETAIL);
        }
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    @Test
    void shouldFailAFetchForTheEndOfItsPathsWhenNoReasonComesInTime() {
        granted();
        closeAdmission();
        long waitNs = LIMITS.lastWordWaitNs();
        assertThat(waitNs).isPositive().isLessThanOrEqualTo(LIMITS.silenceLimitNs() / 5);
        assertThat(decoder.messenger.nextDeadlineNs()).isLessThanOrEqualTo(nowNs + waitNs);
        nowNs += waitNs - 1;
        decoder.messenger.doWork();
        assertThat(decoder.reported).isEmpty();
        nowNs += 1;
        decoder.messenger.doWork();

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).isEqualTo("the data paths from prefiller at host:7 ended: " + PATH_DETAIL);
        assertThat(decoder.wire.take())
                .filteredOn(ControlFrame::hasGoodbye)
                .singleElement()
                .satisfies(frame -> assertThat(frame.getGoodbye().getSentence()).isEqualTo(decoder.lastFailure));
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    @Test
    void shouldFailAFetchForWhicheverEndsFirstOfTwoChannelsWithoutAWord() {
        granted();
        closeAdmission();
        decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).endsWith(PATH_DETAIL);
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    @Test
    void shouldArriveAtOnceWhenAllIsHereBeforeTheEndOfThePaths() {
        fetch("r", 1, 0);
        carry();
        prefiller.transfer.landsIn = decoder.transfer;
        compute("r", 0);
        prefiller.messenger.doWork();
        closeAdmission();

        assertThat(decoder.reported).containsExactly("arrived r");
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    /** The peer cannot know it. */
    @Test
    void shouldFailAFetchAtOnceWhenThisSideHasRefusedAWrite() {
        granted();
        decoder.transfer.completions.add(
                handler -> handler.onWriteRefused(decoder.transfer.admitted.getLast(), "outside its windows"));
        closeAdmission();

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).endsWith(PATH_DETAIL);
        assertThat(decoder.wire.take()).anyMatch(ControlFrame::hasGoodbye);
    }

    @Test
    void shouldGiveBackAtOnceWhatTheEngineGivesUpMeanwhile() {
        granted();
        closeAdmission();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    @Test
    void shouldDialAgainForWhatIsAskedMeanwhile() {
        granted();
        int dialled = decoder.wire.dialledCount;
        closeAdmission();
        fetch("s", 3, 0);

        assertThat(decoder.wire.dialledCount).isEqualTo(dialled + 1);
        assertThat(decoder.wire.take()).noneMatch(ControlFrame::hasGrant);
    }

    @Test
    void shouldNotGrantAgainMeanwhile() {
        granted();
        closeAdmission();
        decoder.messenger.onFrame(Wire.DIALLED_LINK, cannotDeliver(CannotDeliver.Reason.PREEMPTED).frame);
        decoder.messenger.doWork();
        assertThat(decoder.wire.take()).noneMatch(ControlFrame::hasGrant);
        nowNs += LIMITS.lastWordWaitNs();
        decoder.messenger.doWork();

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.tally.sum(FetchFailure.CONNECTION_LOST)).isEqualTo(1);
        assertThat(decoder.tally.sum(MessengerMetric.FETCHES_REGRANTED)).isZero();
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    @Test
    void shouldNotGrantToAnEndingSessionWhatWaitsForASlot() {
        decoder.transfer.freeSlots = 0;
        fetch("r", 1, 0);
        carry();
        closeAdmission();
        decoder.transfer.freeSlots = 8;
        carry();
        assertThat(decoder.cache.held().windowsOpen()).isZero();
        nowNs += LIMITS.lastWordWaitNs();
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("failed r");
    }

    /** They come by the link, which has not ended. */
    @Test
    void shouldArriveWhenChecksumsComeAfterTheEndOfThePaths() {
        prefiller = new Side("prefiller", 1, 0, ChecksumMode.FULL);
        decoder = new Side("decoder", 2, 0, ChecksumMode.FULL);
        fetch("warm-up", 1, 0);
        meet();
        fetch("r", 1, 0);
        carry();
        prefiller.transfer.landsIn = decoder.transfer;
        compute("r", 0);
        prefiller.messenger.doWork();
        closeAdmission();
        assertThat(decoder.reported).isEmpty();
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();
        decoder.messenger.doWork();

        assertThat(decoder.reported).containsExactly("arrived r");
        assertThat(decoder.cache.held().clean()).isTrue();
    }

    private void granted() {
        fetch("r", 1, 0);
        decoder.messenger.doWork();
        assertThat(decoder.wire.take()).anyMatch(ControlFrame::hasGrant);
    }

    private void closeAdmission() {
        decoder.transfer.completions.add(
                handler -> handler.onAdmissionClosed(decoder.transfer.admitted.getLast(), PATH_DETAIL));
        decoder.messenger.doWork();
    }

    // ---- a prefiller, which loses its peer

    @ParameterizedTest
    @MethodSource("prefillerCases")
    void shouldStopAPrefillForTheDecodersReason(PrefillerCase at) {
        running();
        if (at.first == First.CONTROL) {
            prefiller.messenger.onFrame(Wire.DIALLED_LINK, at.word.frame);
            endPaths(at.pathEnd, at.fault);
        } else {
            endPaths(at.pathEnd, at.fault);
            assertThat(prefiller.reported).doesNotContain("stopped r");
            assertThat(prefiller.wire.take()).as("it has no reason of its own").isEmpty();
            assertNothingIsSubmitted();
            prefiller.messenger.onFrame(Wire.DIALLED_LINK, at.word.frame);
        }
        failAllWrites(at.fault);

        assertThat(prefiller.reported).containsOnlyOnce("stopped r");
        assertThat(prefiller.lastStop).contains(at.word.expected);
        assertReleased();
    }

    @ParameterizedTest
    @EnumSource(PathEnd.class)
    void shouldStopAPrefillForTheEndOfItsPathsWhenNoReasonComesInTime(PathEnd pathEnd) {
        running();
        endPaths(pathEnd, TransferFault.PEER_CLOSED);
        nowNs += LIMITS.lastWordWaitNs() - 1;
        prefiller.messenger.doWork();
        assertThat(prefiller.reported).doesNotContain("stopped r");
        nowNs += 1;
        prefiller.messenger.doWork();
        failAllWrites(TransferFault.PEER_CLOSED);

        assertThat(prefiller.reported).containsOnlyOnce("stopped r");
        assertThat(prefiller.lastStop).endsWith(PATH_DETAIL);
        List<ControlFrame> sent = prefiller.wire.take();
        assertThat(sent).anyMatch(ControlFrame::hasGoodbye);
        assertReleased();
    }

    /** It can still be counted then, or be confirmed that nothing follows. */
    @Test
    void shouldReportItsPathsEndToADecoderThatHasNotGone() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        endPaths(PathEnd.PEER_LOST, TransferFault.PEER_CLOSED);
        nowNs += LIMITS.lastWordWaitNs();
        prefiller.messenger.doWork();

        assertThat(prefiller.wire.take())
                .filteredOn(ControlFrame::hasCannotDeliver)
                .singleElement()
                .satisfies(frame ->
                        assertThat(frame.getCannotDeliver().getReason()).isEqualTo(CannotDeliver.Reason.PATH_LOST));
    }

    @ParameterizedTest
    @EnumSource(TransferFault.class)
    void shouldWaitOnlyForAPeerThatHasEndedThePaths(TransferFault fault) {
        running();
        endPaths(PathEnd.PEER_LOST, fault);

        assertThat(prefiller.wire.closed).isEqualTo(!BY_PEER.contains(fault));
        assertThat(prefiller.reported.contains("stopped r")).isEqualTo(!BY_PEER.contains(fault));
    }

    /** Its last write was under way when the paths ended, and its completion comes after that. */
    @Test
    void shouldHaveSentWhatCompletesAfterTheEndOfThePaths() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        prefiller.messenger.doWork();
        endPaths(PathEnd.PEER_LOST, TransferFault.PEER_CLOSED);
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        end("r", EngineCommand.PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        assertThat(prefiller.reported).contains("released r").doesNotContain("stopped r");
    }

    /** A grant that comes meanwhile is answered by the end of the session. */
    @Test
    void shouldTakeNoGrantMeanwhile() {
        running();
        endPaths(PathEnd.PEER_LOST, TransferFault.PEER_CLOSED);
        announce("s");
        fetch("s", 3, 0);
        decoder.messenger.doWork();
        decoder.wire.take().forEach(frame -> prefiller.messenger.onFrame(Wire.DIALLED_LINK, frame));

        assertThat(prefiller.reported).noneMatch(event -> event.startsWith("granted s"));
    }

    /** A pass has begun, one layer of it is being written, and more follows. */
    private void running() {
        announce("r");
        fetch("r", 1, 0);
        carry();
        beginPass("r");
        landsLate = true;
        assertThat(prefiller.transfer.submitted).isNotEmpty();
        assertThat(prefiller.wire.take()).isEmpty();
    }

    private void endPaths(PathEnd pathEnd, TransferFault fault) {
        if (pathEnd == PathEnd.WRITE_FAILED_AND_PEER_LOST) {
            failOneWrite(fault);
        }
        prefiller.transfer.completions.add(
                handler -> handler.onPeerLost(prefiller.transfer.connected.getLast(), fault, PATH_DETAIL));
        if (pathEnd == PathEnd.PEER_LOST_AND_WRITE_FAILED) {
            failOneWrite(fault);
        }
        prefiller.messenger.doWork();
    }

    private void failOneWrite(TransferFault fault) {
        long cookie = prefiller.transfer.submitted.removeFirst();
        prefiller.transfer.completions.add(handler -> handler.onWriteFailed(cookie, fault, PATH_DETAIL));
    }

    private void failAllWrites(TransferFault fault) {
        while (!prefiller.transfer.submitted.isEmpty()) {
            failOneWrite(fault);
        }
        prefiller.messenger.doWork();
    }

    private void assertNothingIsSubmitted() {
        int before = prefiller.transfer.requests.size();
        prefiller.progress.count++;
        prefiller.messenger.doWork();
        assertThat(prefiller.transfer.requests).hasSize(before);
    }

    private void assertReleased() {
        endStep();
        end("r", EngineCommand.PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        prefiller.messenger.doWork();
        assertThat(prefiller.reported).containsOnlyOnce("released r");
        assertThat(prefiller.cache.held().clean()).isTrue();
    }
}
