package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.specdecode.ContextSlots;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Requests that use one transfer id at the same moment, for prompts that differ. */
class SameIdTest extends SameIdPair {
    @ParameterizedTest
    @ValueSource(strings = {"ffpp", "ppff", "fpfp", "pfpf", "fppf", "pffp"})
    void shouldServeTwoPromptsUnderOneIdWhicheverSideIsFirst(String order) {
        int fetches = 0;
        int prefills = 0;
        for (int side : order.chars().toArray()) {
            if (side == 'f') {
                fetch(fetches == 0 ? "d1" : "d2", fetches == 0 ? FIRST : SECOND, fetches == 0 ? 1 : 3);
                fetches++;
            } else {
                prefills++; // the second one's prefill begins first
                announce("p" + prefills, prefills == 1 ? SECOND : FIRST);
            }
        }
        compute("p1", SECOND, SECOND_PAGES);
        compute("p2", FIRST, FIRST_PAGES);
        finish("p1");
        finish("p2");
        completeAllWrites();

        assertThat(pagesSent()).containsExactlyInAnyOrder("5>1", "6>2", "7>3", "2>4");
        assertThat(decoder.reported).isEmpty();
        assertThat(prefiller.reported)
                .contains("released p1", "released p2")
                .noneMatch(word -> word.startsWith("stopped"));
        assertThat(prefiller.cache.held().prefills()).isZero();
    }

    @Test
    void shouldNotEndOnePromptByTheDeclineOfTheOther() {
        announce("p1", FIRST);
        announce("p2", SECOND);
        decoder.cache.onCommand(new EngineCommand.Decline(FIRST, PREFILLER));
        carry();
        assertThat(prefiller.reported).containsExactly("stopped p1");
        compute("p2", SECOND, SECOND_PAGES);
        finish("p2");
        finish("p1");
        fetch("d2", SECOND, 3);
        completeAllWrites();

        assertThat(pagesSent()).containsExactlyInAnyOrder("7>3", "2>4");
        assertThat(prefiller.reported).contains("released p1", "released p2");
    }

    @Test
    void shouldRememberADeclineForItsOwnPromptOnly() {
        decoder.cache.onCommand(new EngineCommand.Decline(FIRST, PREFILLER));
        carry();
        compute("p2", SECOND, SECOND_PAGES);
        finish("p2");
        assertThat(prefiller.reported).as("its decoder has not spoken").isEmpty();
        compute("p1", FIRST, FIRST_PAGES);
        finish("p1");

        assertThat(prefiller.reported).containsExactly("released p1");
    }

    @Test
    void shouldCancelOnePromptOnly() {
        fetch("d1", FIRST, 1);
        fetch("d2", SECOND, 3);
        decoder.cache.onCommand(new EngineCommand.Abandon("d1"));
        carry();
        compute("p2", SECOND, SECOND_PAGES);
        finish("p2");
        completeAllWrites();
        compute("p1", FIRST, FIRST_PAGES);
        finish("p1");

        assertThat(decoder.reported).containsExactly("failed d1");
        assertThat(pagesSent()).containsExactlyInAnyOrder("7>3", "2>4");
        assertThat(prefiller.reported).as("the first need not wait").contains("released p1", "released p2");
    }

    @Test
    void shouldNotAnswerForAnotherPromptFromMemory() {
        announce("p1", FIRST);
        end("p1", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        fetch("d2", SECOND, 3);
        assertThat(decoder.reported).isEmpty();
        fetch("d1", FIRST, 1);
        assertThat(decoder.reported).containsExactly("failed d1");
        assertThat(decoder.lastFailure).contains("ABORTED");
        compute("p2", SECOND, SECOND_PAGES);
        finish("p2");
        completeAllWrites();

        assertThat(pagesSent()).containsExactlyInAnyOrder("7>3", "2>4");
    }

    @Test
    void shouldKeepThePromptThatIsExpectedAndNotTheOther() {
        decoder.cache.onCommand(new EngineCommand.Expect(SECOND, PREFILLER));
        carry();
        compute("p1", FIRST, FIRST_PAGES);
        compute("p2", SECOND, SECOND_PAGES);
        finish("p1");
        finish("p2");
        pass(LIMITS.grantWaitNs() + LIMITS.heartbeatNs());

        assertThat(prefiller.reported).containsExactly("released p1");
    }

    @Test
    void shouldSayWhichOfTheExpectedPromptsIsComputed() {
        decoder.cache.onCommand(new EngineCommand.Expect(FIRST, PREFILLER));
        decoder.cache.onCommand(new EngineCommand.Expect(SECOND, PREFILLER));
        announce("p1", FIRST);
        compute("p2", SECOND, SECOND_PAGES);
        finish("p2");

        assertThat(decoder.reported).containsExactly("prefilled one-id bb");
    }

    @Test
    void shouldSayThatAnotherPromptCameUnderThatId() {
        compute("p2", SECOND, SECOND_PAGES);
        fetch("d1", FIRST, 1);
        pass(LIMITS.grantWaitNs() + LIMITS.heartbeatNs());

        assertThat(decoder.reported).containsExactly("failed d1");
        assertThat(decoder.lastFailure).contains("unheard_limit_seconds", "another prompt", "same tokenizer");
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void shouldEndBothLegsThatNameDifferentPrompts(boolean grantFirst) {
        if (grantFirst) {
            fetch("d1", FIRST, 1);
            announce("p2", SECOND);
        } else {
            announce("p2", SECOND);
            fetch("d1", FIRST, 1);
        }
        assertThat(decoder.reported).as("more of either may come").isEmpty();
        pass(LIMITS.contradictionWaitNs() + LIMITS.heartbeatNs());

        assertThat(decoder.reported).containsExactly("failed d1");
        assertThat(decoder.lastFailure).contains("name different prompts", "same tokens and adapter");
        assertThat(prefiller.cache.held().grantsWaiting()).isZero();
        assertThat(prefiller.reported).as("its decoder may ask by another name").isEmpty();
        pass(LIMITS.contradictionWaitNs());

        assertThat(decoder.reported).containsExactly("failed d1");
        assertThat(prefiller.reported).containsExactly("stopped p2");
        end("p2", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        assertThat(prefiller.cache.held().prefills()).isZero();
    }

    /** As where both engines have got other weights between the two legs: the decoder names the prompt again. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void shouldServeADecoderThatAsksByThePresentNameOfThePrompt(boolean expectsFirst) {
        fetch("d1", FIRST, 1);
        announce("p2", SECOND);
        pass(LIMITS.contradictionWaitNs() + LIMITS.heartbeatNs());
        assertThat(decoder.reported).containsExactly("failed d1");
        if (expectsFirst) {
            decoder.cache.onCommand(new EngineCommand.Expect(SECOND, PREFILLER));
            carry();
            pass(2 * LIMITS.contradictionWaitNs());
        } else {
            pass(LIMITS.contradictionWaitNs() / 2);
        }
        fetch("d2", SECOND, 3);
        pass(2 * LIMITS.contradictionWaitNs());
        compute("p2", SECOND, SECOND_PAGES);
        finish("p2");
        completeAllWrites();

        assertThat(pagesSent()).containsExactlyInAnyOrder("7>3", "2>4");
        assertThat(prefiller.reported).containsExactly("granted p2 [0, 8)", "released p2");
    }

    @Test
    void shouldNotTakeALegThatIsLateForAContradiction() {
        announce("p2", SECOND);
        fetch("d1", FIRST, 1);
        pass(LIMITS.contradictionWaitNs() / 2);
        announce("p1", FIRST);
        pass(LIMITS.contradictionWaitNs());
        fetch("d2", SECOND, 3);
        compute("p1", FIRST, FIRST_PAGES);
        compute("p2", SECOND, SECOND_PAGES);
        finish("p1");
        finish("p2");
        completeAllWrites();

        assertThat(pagesSent()).containsExactlyInAnyOrder("5>1", "6>2", "7>3", "2>4");
        assertThat(prefiller.reported)
                .contains("released p1", "released p2")
                .noneMatch(word -> word.startsWith("stopped"));
    }

    @Test
    void shouldNotTakeLegsThatHaveJustComeForThoseThatWerePuzzlingBefore() {
        fetch("d1", FIRST, 0);
        announce("p2", SECOND);
        pass(LIMITS.contradictionWaitNs() / 2);
        announce("p1", FIRST);
        fetch("d2", SECOND, 2);
        pass(LIMITS.contradictionWaitNs() / 2 - LIMITS.heartbeatNs());
        fetch("d3", THIRD, 4); // its prefill leg is a moment behind, as is the decode leg of the fourth
        announce("p4", FOURTH);
        pass(2 * LIMITS.heartbeatNs());
        announce("p3", THIRD);
        fetch("d4", FOURTH, 6);

        assertThat(decoder.reported).isEmpty();
        assertThat(prefiller.reported).noneMatch(word -> word.startsWith("stopped"));
        assertThat(prefiller.cache.held().grantsWaiting()).isZero();
    }

    @Test
    void shouldEndNoLegsOfWhichSomeMayOnlyBeLate() {
        announce("p2", SECOND);
        announce("p3", THIRD);
        fetch("d1", FIRST, 1);
        pass(LIMITS.contradictionWaitNs() + LIMITS.heartbeatNs());

        assertThat(decoder.lastFailure).as("its own limit").contains("unheard_limit_seconds");
        assertThat(prefiller.reported)
                .as("which of them the first contradicts is not known")
                .isEmpty();
    }

    @Test
    void shouldKeepAnAnnouncedPromptThatIsExpectedBesideAnother() {
        decoder.cache.onCommand(new EngineCommand.Expect(SECOND, PREFILLER));
        carry();
        announce("p2", SECOND);
        fetch("d1", FIRST, 1);
        pass(LIMITS.contradictionWaitNs() + LIMITS.heartbeatNs());

        assertThat(prefiller.reported).isEmpty();
    }

    @Test
    void shouldWaitAFewSecondsForAContradictionToClear() {
        long seconds = 1_000_000_000L;
        ProtocolLimits patient = new ProtocolLimits(120 * seconds, 300 * seconds, seconds, seconds, seconds);

        assertThat(patient.contradictionWaitNs()).isEqualTo(5 * seconds);
    }

    @Test
    void shouldSayThatAnotherPromptHadComeUnderThatId() {
        fetch("d1", FIRST, 1);
        announce("p2", SECOND);
        end("p2", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        pass(LIMITS.grantWaitNs() + LIMITS.heartbeatNs());

        assertThat(decoder.lastFailure).contains("another prompt", "same tokenizer");
    }

    @Test
    void shouldEnqueueBothPromptsOfOneIdAndTakeBackTheOneThatIsRefused() {
        fetch("d1", FIRST, 1, new EngineCommand.Prompt(new int[] {1}, "", 0));
        fetch("d2", SECOND, 3, new EngineCommand.Prompt(new int[] {2}, "", 0));
        assertThat(prefiller.enqueued).containsExactly(ID, ID);
        prefiller.cache.onEnqueueFailed(FIRST, "the engine is full");
        carry();

        assertThat(decoder.reported).containsExactly("failed d1");
        assertThat(decoder.lastFailure).contains("the engine is full");
        assertThat(prefiller.cache.held().grantsWaiting()).isEqualTo(1);
    }
}
