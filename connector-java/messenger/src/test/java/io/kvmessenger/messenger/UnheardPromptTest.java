package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.PrefillFailure;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** How long a grant waits for a prompt of which its prefiller has heard nothing, and what a leg that comes later hears. */
class UnheardPromptTest extends MessengerPair {
    private static final List<PrefillerAddress> PREFILLER = List.of(new PrefillerAddress("host", 7, ""));
    private static final long LONG_NS = 1_000_000;
    private static final long UNHEARD_NS = 400;
    private static final long MILLI = 1_000_000;

    @BeforeEach
    void haveAShortLimit() {
        meetWith(new ProtocolLimits(2000, LONG_NS, 500, 20, 300, UNHEARD_NS, 0));
    }

    private void meetWith(ProtocolLimits both) {
        meetWith(both, both);
    }

    private void meetWith(ProtocolLimits ofPrefiller, ProtocolLimits ofDecoder) {
        limits = ofPrefiller;
        prefiller = new Side("prefiller", 1, 0);
        limits = ofDecoder;
        decoder = new Side("decoder", 2, 0);
        limits = ofPrefiller;
        fetch("warm-up", 1, 0);
        meet();
    }

    private void pass(long ns) {
        long step = limits.heartbeatNs() / 2;
        for (long passed = 0; passed < ns; passed += step) {
            nowNs += Math.min(step, ns - passed);
            carry();
        }
    }

    private void ask(String request) {
        fetch(request, 1, LONG_NS * MILLI);
        carry();
    }

    /** The prompt of a request is announced so long after its grant. */
    private void askAndAnnounce(String request, long laterNs) {
        ask(request);
        pass(laterNs);
        announce(request);
        carry();
        assertThat(prefiller.reported).contains("granted " + request + " [0, 8)");
    }

    @Test
    void shouldAnswerAfterTheShortLimitWhenAPromptThatWasRejectedNeverComes() {
        ask("r");
        pass(UNHEARD_NS - 1);
        assertThat(decoder.reported).isEmpty();
        pass(1);

        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("(unheard_limit_seconds)");
        assertThat(prefiller.cache.held().grantsWaiting()).isZero();
    }

    @Test
    void shouldNameTheLimitThatCountsWhereBothAreEqual() {
        meetWith(new ProtocolLimits(UNHEARD_NS, LONG_NS, 500, 20, 300, UNHEARD_NS, 0));
        ask("r");
        pass(UNHEARD_NS);

        assertThat(decoder.lastFailure).contains("(unheard_limit_seconds)");
    }

    @Test
    void shouldWaitForAPromptThatIsQueuedAsLongAsTheQueueIs() {
        ask("r");
        pass(UNHEARD_NS - 1);
        announce("r");
        pass(5 * limits.grantWaitNs());
        assertThat(decoder.reported).isEmpty();
        compute("r", 0);
        end("r", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        carry();

        assertThat(prefiller.transfer.submitted).isNotEmpty();
    }

    @Test
    void shouldKeepAFinishedPromptForItsGrantAsLongAsEver() {
        compute("r", 0);
        end("r", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        pass(limits.grantWaitNs() - 1);
        assertThat(prefiller.reported).isEmpty();
        ask("r");

        assertThat(prefiller.transfer.submitted).isNotEmpty();
    }

    @Test
    void shouldWaitAsLongAsTheDecoderAsks() {
        ProtocolLimits own = new ProtocolLimits(2 * MILLI, LONG_NS * MILLI, MILLI, MILLI / 10, MILLI, MILLI, 0);
        ProtocolLimits asking =
                new ProtocolLimits(2 * MILLI, LONG_NS * MILLI, MILLI, MILLI / 10, MILLI, MILLI, 9 * MILLI);
        meetWith(own, asking);
        ask("r");
        pass(9 * MILLI - 1);
        assertThat(decoder.reported).isEmpty();
        pass(1);

        assertThat(decoder.lastFailure).contains("within 9 ms (unheard_limit_seconds)");
    }

    @Test
    void shouldWaitForItsOwnLimitWhereTheDecoderAsksForLess() {
        ProtocolLimits own = new ProtocolLimits(9 * MILLI, LONG_NS * MILLI, MILLI, MILLI / 10, MILLI, 5 * MILLI, 0);
        ProtocolLimits asking =
                new ProtocolLimits(9 * MILLI, LONG_NS * MILLI, MILLI, MILLI / 10, MILLI, 5 * MILLI, MILLI);
        meetWith(own, asking);
        ask("r");
        pass(5 * MILLI - 1);
        assertThat(decoder.reported).isEmpty();
    }

    @Test
    void shouldWaitLongerWhilePromptsComeLaterThanTheirGrants() {
        askAndAnnounce("first", UNHEARD_NS - 1);
        ask("second");
        pass(2 * (UNHEARD_NS - 1) - 1);
        assertThat(decoder.reported).isEmpty();
        pass(1);
        assertThat(decoder.reported).containsExactly("failed second");

        pass(4 * UNHEARD_NS);
        ask("third");
        pass(UNHEARD_NS);
        assertThat(decoder.reported).as("the queue is over").containsExactly("failed second", "failed third");
    }

    @Test
    void shouldNotWaitLongerThanForAPromptThatIsHeardOf() {
        askAndAnnounce("first", UNHEARD_NS - 1);
        askAndAnnounce("second", 2 * UNHEARD_NS - 10);
        askAndAnnounce("third", 4 * UNHEARD_NS - 100);
        ask("fourth");
        pass(limits.grantWaitNs() - 1);
        assertThat(decoder.reported).isEmpty();
        pass(1);

        assertThat(decoder.reported).containsExactly("failed fourth");
    }

    @Test
    void shouldNotCountTheTimeOfAPassInWhichTheEngineAnnouncesNothing() {
        beginStep(new EngineCommand.Chunk("other", "t-other", PROMPT_TOKENS, 0, 0, PROMPT_TOKENS, 0, new int[] {5, 6}));
        pass(1);
        ask("r");
        pass(3 * UNHEARD_NS);
        assertThat(decoder.reported).isEmpty();
        endStep();
        pass(UNHEARD_NS);

        assertThat(decoder.reported).containsExactly("failed r");
    }

    @Test
    void shouldNotWaitForAPassThatIsStuckLongerThanForAPromptThatIsHeardOf() {
        beginStep(new EngineCommand.Chunk("other", "t-other", PROMPT_TOKENS, 0, 0, PROMPT_TOKENS, 0, new int[] {5, 6}));
        pass(1);
        ask("r");
        pass(limits.grantWaitNs());

        assertThat(decoder.reported).containsExactly("failed r");
    }

    @Test
    void shouldCountTheTimeWhilePassesBeginAndAnnounceOthers() {
        ask("r");
        for (long passed = 0; passed < UNHEARD_NS; passed += 100) {
            pass(99);
            beginStep();
            pass(1);
            endStep();
        }
        carry();

        assertThat(decoder.reported).containsExactly("failed r");
    }

    @Test
    void shouldWaitForAPromptThatTheDecoderBroughtAsLongAsForOneThatIsHeardOf() {
        fetch("r", 1, LONG_NS * MILLI, new int[] {1, 2, 3});
        carry();
        assertThat(prefiller.enqueued).hasSize(1);
        pass(limits.grantWaitNs() - 1);
        assertThat(decoder.reported).isEmpty();
        pass(1);

        assertThat(decoder.lastFailure).contains("(grant_wait_seconds)");
    }

    @Test
    void shouldAdmitAnExpectedPromptThatIsUnheardOfAfterTheShortLimit() {
        decoder.cache.onCommand(new EngineCommand.Expect(new TransferKey("t-r", ""), PREFILLER));
        carry();
        pass(UNHEARD_NS - 1);
        assertThat(decoder.reported).isEmpty();
        pass(1);

        assertThat(decoder.reported).containsExactly("prefilled t-r");
    }

    @Test
    void shouldEndALegAtOnceThatComesAfterItsDecoderHasGivenUp() {
        ask("r");
        pass(UNHEARD_NS);
        announce("r");

        assertThat(prefiller.reported).containsExactly("stopped r");
        assertThat(prefiller.lastStop).contains("no request with transfer id t-r reached the prefiller");
    }

    @Test
    void shouldEndALegAtOnceThatComesAfterItsDecoderHasDeclined() {
        decoder.cache.onCommand(new EngineCommand.Decline(new TransferKey("t-r", ""), PREFILLER));
        carry();
        announce("r");
        end("r", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        carry();

        assertThat(prefiller.reported).containsExactly("stopped r", "released r");
        assertThat(prefiller.lastStop).contains("declined");
        assertThat(prefiller.tally.sum(PrefillFailure.UNWANTED)).isEqualTo(1);
        assertThat(prefiller.tally.sum(MessengerMetric.PREFILLS_UNDELIVERED)).isEqualTo(1);
    }

    @Test
    void shouldEndALegAtOnceThatComesAfterItsDecoderWasLost() {
        ask("r");
        prefiller.messenger.onLinkClosed(Wire.DIALLED_LINK, "its process has ended");
        announce("r");

        assertThat(prefiller.reported).containsExactly("stopped r");
        assertThat(prefiller.lastStop).contains("its process has ended");
    }

    @Test
    void shouldServeADecoderThatAsksAgainAfterItHasGivenUp() {
        ask("r");
        pass(UNHEARD_NS);
        ask("r");
        announce("r");
        carry();

        assertThat(prefiller.reported).containsExactly("granted r [0, 8)");
    }
}
