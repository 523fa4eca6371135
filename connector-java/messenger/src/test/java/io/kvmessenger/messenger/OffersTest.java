package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.ChunkPages;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.wire.ControlFrame.BodyCase;
import io.kvmessenger.messenger.wire.FrameVersions;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** A question for a cached prefix is answered once, and what is offered is released once, in whatever order all comes. */
class OffersTest extends MessengerPair {
    private static final TransferKey TRANSFER = new TransferKey("pull-1", "ab");
    private static final List<PrefillerAddress> SOURCE = List.of(new PrefillerAddress("host", 7, ""));
    private static final int HELD_TOKENS = 2 * Geometries.PAGE_TOKENS;

    private void ask() {
        int[] tokens = IntStream.range(0, HELD_TOKENS + Geometries.PAGE_TOKENS).toArray();
        decoder.cache.onCommand(new EngineCommand.Ask(
                "q", TRANSFER, SOURCE.getFirst(), new EngineCommand.Prompt(tokens, "salt", 0), 200));
        carry();
    }

    private void offer(int... pages) {
        offer(true, pages);
    }

    /** The engine was asked by way of another of its messengers. */
    private void keepPart() {
        offer(false, 5, 6);
    }

    private void offer(boolean asked, int... pages) {
        prefiller.cache.onCommand(new EngineCommand.Offer(
                "o",
                TRANSFER,
                asked,
                pages.length * Geometries.PAGE_TOKENS,
                List.of(new ChunkPages(0, pages)),
                pages.length == 0 ? OfferOutcome.NOT_HELD : OfferOutcome.HELD));
        carry();
    }

    private void fetch() {
        decoder.cache.onCommand(new EngineCommand.Fetch(
                "q",
                TRANSFER.id(),
                SOURCE,
                HELD_TOKENS,
                0,
                List.of(new int[] {3, 4}),
                -1,
                List.of(),
                100,
                TRANSFER.digest(),
                EngineCommand.Prompt.NONE,
                EngineCommand.PullWaits.NONE));
        carry();
    }

    private void completeAllWrites() {
        while (!prefiller.transfer.submitted.isEmpty()) {
            assertThat(prefiller.reported).isEmpty();
            completeOneWrite();
        }
        decoder.transfer.reportFilled();
        carry();
    }

    private void decline() {
        decoder.cache.onCommand(new EngineCommand.Decline(TRANSFER, SOURCE));
        carry();
    }

    private void pass(long ns) {
        nowNs += ns;
        carry();
    }

    /** Whatever has become of a question, the engine need not compute anything for it. */
    @AfterEach
    void assertQuestionsEnded() {
        assertThat(prefiller.asksEnded).isEqualTo(prefiller.asked);
    }

    private void assertNothingHeld() {
        assertThat(prefiller.cache.held().clean()).isTrue();
        assertThat(decoder.cache.held().clean()).isTrue();
        assertThat(decoder.cache.fetchEntryCount()).isZero();
    }

    /** They may all wait for one session, which would close a link that cannot carry them. */
    @Test
    void shouldAskForNoMoreTokensThanALinkCarriesAtOnce() {
        int[] tokens = new int[ProtocolLimits.ASKED_TOKENS_MAX / 2];
        for (String request : List.of("a", "b", "c")) {
            decoder.cache.onCommand(new EngineCommand.Ask(
                    request,
                    new TransferKey("pull-" + request, ""),
                    SOURCE.getFirst(),
                    new EngineCommand.Prompt(tokens, "", 0),
                    200));
        }

        assertThat(decoder.reported).containsExactly("offered c 0 BUSY");
    }

    @Test
    void shouldSendWhatIsHeldAndReleaseItOnce() {
        ask();
        assertThat(prefiller.asked).containsExactly(TRANSFER);
        assertThat(prefiller.prompts.getLast().cacheSalt()).isEqualTo("salt");
        offer(5, 6);
        assertThat(decoder.reported).containsExactly("offered q " + HELD_TOKENS + " HELD");
        fetch();
        completeAllWrites();
        assertThat(prefiller.reported).containsExactly("released o");
        assertThat(decoder.reported).containsExactly("offered q " + HELD_TOKENS + " HELD", "arrived q");
        assertNothingHeld();
    }

    @ParameterizedTest
    @EnumSource(names = {"NOT_HELD", "BUSY", "MISFIT", "UNAVAILABLE"})
    void shouldSayWhyNothingIsHeld(OfferOutcome outcome) {
        ask();
        prefiller.cache.onCommand(new EngineCommand.Offer("o", TRANSFER, true, 0, List.of(), outcome));
        carry();
        assertThat(decoder.reported).containsExactly("offered q 0 " + outcome);
        assertThat(prefiller.reported).isEmpty();
        assertNothingHeld();
    }

    @Test
    void shouldReleaseAnOfferThatIsDeclined() {
        ask();
        offer(5, 6);
        decline();
        assertThat(prefiller.reported).containsExactly("released o");
        assertNothingHeld();
    }

    @Test
    void shouldReleaseAnAnswerWhoseQuestionWasTakenBack() {
        ask();
        decline();
        offer(5, 6);
        assertThat(prefiller.reported).containsExactly("released o");
        assertThat(decoder.reported).isEmpty();
        assertNothingHeld();
    }

    @Test
    void shouldReleaseAnOfferThatNoGrantTakes() {
        ask();
        offer(5, 6);
        pass(limits.offerLimitNs() - 1);
        assertThat(prefiller.reported).isEmpty();
        pass(1);
        assertThat(prefiller.reported).containsExactly("released o");
        assertThat(prefiller.tally.sums()).doesNotContainKey(MessengerMetric.PREFILLS_EXPIRED);
    }

    @Test
    void shouldAnswerAGrantAtOnceWhoseOfferWasGivenUp() {
        ask();
        offer(5, 6);
        pass(limits.offerLimitNs() - 1);
        pass(1);
        fetch();
        assertThat(decoder.reported).containsExactly("offered q " + HELD_TOKENS + " HELD", "failed q");
        assertNothingHeld();
    }

    @Test
    void shouldReleaseAnOfferAtTheEndOfItsSession() {
        ask();
        offer(5, 6);
        prefiller.messenger.onLinkClosed(Wire.DIALLED_LINK, "gone");
        prefiller.messenger.doWork();
        assertThat(prefiller.reported).containsExactly("released o");
    }

    @Test
    void shouldForgetAQuestionAtTheEndOfItsSession() {
        ask();
        prefiller.messenger.onLinkClosed(Wire.DIALLED_LINK, "gone");
        offer(5, 6);
        assertThat(prefiller.reported).containsExactly("released o");
        decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "gone");
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("offered q 0 UNREACHABLE");
    }

    @Test
    void shouldServeNoGrantOfAnOfferThatWasTakenBack() {
        ask();
        offer(5, 6);
        prefiller.cache.onCommand(new EngineCommand.Withdraw("o"));
        assertThat(prefiller.reported).containsExactly("released o");
        fetch(); // answered at once: no other prefill comes under the id of a question
        assertThat(prefiller.transfer.submitted).isEmpty();
        assertThat(decoder.reported).containsExactly("offered q " + HELD_TOKENS + " HELD", "failed q");
        assertNothingHeld();
    }

    @Test
    void shouldServeAGrantThatCameBeforeTheOfferWasTakenBack() {
        ask();
        offer(5, 6);
        fetch();
        prefiller.cache.onCommand(new EngineCommand.Withdraw("o"));
        assertThat(prefiller.reported).isEmpty();
        completeAllWrites();
        assertThat(prefiller.reported).containsExactly("released o");
        assertThat(decoder.reported).contains("arrived q");
    }

    @Test
    void shouldEndAQuestionThatIsNotAnsweredInTime() {
        ask();
        pass(200);
        assertThat(decoder.reported).containsExactly("offered q 0 LATE");
        offer(5, 6);
        assertThat(prefiller.reported).containsExactly("released o");
        assertThat(decoder.reported).hasSize(1);
        assertNothingHeld();
    }

    @Test
    void shouldAnswerForAnEngineThatDoesNot() {
        ask();
        prefiller.cache.onEnqueueFailed(TRANSFER, "no such server");
        carry();
        assertThat(decoder.reported).containsExactly("offered q 0 BUSY");
    }

    @Test
    void shouldAskNoEngineWhoseAddressIsUnknown() {
        prefiller.withoutIntake = true;
        ask();
        assertThat(prefiller.asked).isEmpty();
        assertThat(decoder.reported).containsExactly("offered q 0 UNAVAILABLE");
    }

    @Test
    void shouldOfferNoPagesThatTheEngineHasNot() {
        ask();
        offer(5, 1 << 20);
        assertThat(decoder.reported).containsExactly("offered q 0 MISFIT");
        assertThat(prefiller.reported).containsExactly("released o");
        assertNothingHeld();
    }

    @Test
    void shouldEndWhatIsOpenWithItsMessenger() {
        ask();
        prefiller.cache.shutDown("the engine ends");
        carry();
        assertThat(decoder.reported).containsExactly("offered q 0 BUSY");
        ask();
        assertThat(decoder.reported).hasSize(2);
        decoder.cache.onCommand(new EngineCommand.Withdraw("unknown"));
        assertNothingHeld();
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void shouldSendThePartOfAMessengerThatWasNotAskedWhicheverComesFirst(boolean grantFirst) {
        List<Runnable> events = List.of(this::keepPart, this::fetch);
        (grantFirst ? events.reversed() : events).forEach(Runnable::run);
        assertThat(prefiller.reported).isEmpty();
        completeAllWrites();
        assertThat(prefiller.reported).containsExactly("released o");
        assertThat(decoder.reported).containsExactly("arrived q");
        assertNothingHeld();
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void shouldReleaseThePartOfAnOfferThatIsDeclinedWhicheverComesFirst(boolean declineFirst) {
        List<Runnable> events = List.of(this::keepPart, this::decline);
        (declineFirst ? events.reversed() : events).forEach(Runnable::run);
        assertThat(prefiller.reported).containsExactly("released o");
        assertThat(decoder.reported).isEmpty();
        assertNothingHeld();
    }

    /** No grant comes for the second: a question is asked once. */
    @Test
    void shouldReleaseAPartThatNoGrantTakesAndASecondOneAtOnce() {
        keepPart();
        pass(limits.offerLimitNs() - 1);
        assertThat(prefiller.reported).isEmpty();
        pass(1);
        assertThat(prefiller.reported).containsExactly("released o");
        keepPart();
        assertThat(prefiller.reported).containsExactly("released o", "released o");
        assertNothingHeld();
    }

    @Test
    void shouldReleaseASecondPartWhileTheFirstIsSent() {
        keepPart();
        prefiller.cache.onCommand(new EngineCommand.Offer(
                "again",
                TRANSFER,
                false,
                HELD_TOKENS,
                List.of(new ChunkPages(0, new int[] {5, 6})),
                OfferOutcome.HELD));
        assertThat(prefiller.reported).containsExactly("released again");
        decline();
        assertThat(prefiller.reported).containsExactly("released again", "released o");
        assertNothingHeld();
    }

    /** It was asked in place of its engine's first messenger. */
    @Test
    void shouldReleaseThePartOfAQuestionThatWasTakenBackHere() {
        ask();
        decline();
        keepPart();
        assertThat(prefiller.reported).containsExactly("released o");
        assertNothingHeld();
    }

    @Test
    void shouldReleaseAPartThatIsWantedBack() {
        keepPart();
        assertThat(prefiller.reported).isEmpty();
        prefiller.cache.onCommand(new EngineCommand.Withdraw("o"));
        assertThat(prefiller.reported).containsExactly("released o");
        assertNothingHeld();
    }

    @Test
    void shouldReleaseAPartThatItHasNot() {
        offer(false, 5, 1 << 20);
        assertThat(prefiller.reported).containsExactly("released o");
        assertThat(prefiller.cache.held().clean()).isTrue();
    }

    /** An engine is asked by way of its first messenger: an asker that names another one alone would wait in vain. */
    @Test
    void shouldAnswerAQuestionThatCameToAnotherMessengerThanTheEngines() {
        ask();
        keepPart();
        assertThat(decoder.reported).containsExactly("offered q 0 MISFIT");
        assertThat(prefiller.reported).containsExactly("released o");
        assertNothingHeld();
    }

    @Test
    void shouldLogWhyItsEngineRefusesQuestionsOnceInAWhile() {
        for (int question = 0; question < 3; question++) {
            ask();
            prefiller.cache.onEnqueueFailed(TRANSFER, "status 401");
            carry();
            decline();
        }
        prefiller.cache.onEnqueueFailed(new TransferKey("prompt", "ab"), "no question");
        assertThat(prefiller.logged)
                .singleElement()
                .asString()
                .startsWith("WARNING")
                .endsWith("status 401");
    }

    @Test
    void shouldAnswerAQuestionWhoseAnswerMeetsABug() {
        ask();
        prefiller.tally.bugs().put(MessengerMetric.OFFERS_MADE, new AssertionError("bug"));
        assertThatThrownBy(() -> offer(5, 6)).hasMessage("bug");
        carry();
        assertThat(decoder.reported).containsExactly("offered q 0 BUSY");
        assertThat(prefiller.reported).containsExactly("released o");
        assertNothingHeld();
    }

    /** A window's offer begins with the first page that its last token attends to. */
    @Test
    void shouldCountThePagesThatAreKeptForOthers() {
        ask();
        prefiller.cache.onCommand(new EngineCommand.Offer(
                "o", TRANSFER, true, HELD_TOKENS, List.of(new ChunkPages(1, new int[] {6})), OfferOutcome.HELD));
        carry();
        assertThat(prefiller.tally.gauges()).containsEntry(MessengerMetric.PAGES_OFFERED, 1L);
    }

    @Test
    void shouldHaveFramesOfTheVersionThatKnowsThem() {
        assertThat(FrameVersions.since(BodyCase.ASK)).isEqualTo(FrameVersions.OFFERS);
        assertThat(FrameVersions.since(BodyCase.OFFER)).isEqualTo(FrameVersions.OFFERS);
    }
}
