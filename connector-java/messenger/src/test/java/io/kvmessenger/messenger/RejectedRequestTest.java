package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Requests whose decode leg never reached its engine: their finished prefills wait for a moment, and serve what asks then. */
class RejectedRequestTest extends MessengerPair {
    private static final List<PrefillerAddress> PREFILLER = List.of(new PrefillerAddress("host", 7, ""));
    private static final TransferKey TRANSFER = new TransferKey("t-r", "");
    private static final long SHORT_NS = LIMITS.rejectedWaitNs();

    private void pass(long ns) {
        long step = LIMITS.heartbeatNs() / 2;
        for (long passed = 0; passed < ns; passed += step) {
            nowNs += Math.min(step, ns - passed);
            carry();
        }
    }

    private void finish(String request) {
        compute(request, 0);
        end(request, PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        carry();
    }

    private void reject(String transferId) {
        decoder.cache.onCommand(new EngineCommand.Reject(transferId, PREFILLER));
        carry();
    }

    @Test
    void shouldKeepAFinishedPrefillForAShortTimeOnly() {
        finish("r");
        pass(SHORT_NS);
        assertThat(prefiller.reported).isEmpty();
        reject("t-r");
        pass(SHORT_NS - 1);
        assertThat(prefiller.reported).isEmpty();
        pass(1);

        assertThat(prefiller.reported).containsExactly("released r");
        assertThat(prefiller.tally.sum(MessengerMetric.PREFILLS_EXPIRED)).isZero();
        assertThat(prefiller.tally.sum(MessengerMetric.PREFILLS_UNDELIVERED)).isEqualTo(1);
    }

    @Test
    void shouldCountTheShortTimeFromTheEndOfThePrefill() {
        compute("r", 0);
        reject("t-r");
        pass(2 * SHORT_NS);
        end("r", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        pass(SHORT_NS - 1);
        assertThat(prefiller.reported).isEmpty();
        pass(1);

        assertThat(prefiller.reported).containsExactly("released r");
    }

    @Test
    void shouldKnowAPrefillLegThatComesAfterTheRejection() {
        reject("t-r");
        finish("r");
        pass(SHORT_NS);

        assertThat(prefiller.reported).containsExactly("released r");
    }

    @Test
    void shouldNotLetARejectionFromLongAgoShortenAnything() {
        reject("t-r");
        pass(SHORT_NS);
        finish("r");
        pass(LIMITS.grantWaitNs() - 1);
        assertThat(prefiller.reported).isEmpty();
        pass(1);

        assertThat(prefiller.reported).containsExactly("released r");
        assertThat(prefiller.tally.sum(MessengerMetric.PREFILLS_EXPIRED)).isEqualTo(1);
    }

    @Test
    void shouldMeanEveryPromptOfAListAndNoOther() {
        List<String> transferIds = List.of("t", "t#1", "t#12", "t#1#2", "t1", "other");
        for (String id : transferIds) {
            EngineCommand.Chunk all = new EngineCommand.Chunk(
                    id,
                    id,
                    PROMPT_TOKENS,
                    0,
                    0,
                    PROMPT_TOKENS,
                    List.of(new EngineCommand.ChunkPages(0, new int[] {5, 6})),
                    "digest of " + id);
            prefiller.cache.onCommand(new EngineCommand.Computed(all));
            end(id, PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        }
        reject("t");
        pass(SHORT_NS);

        assertThat(prefiller.reported)
                .filteredOn(word -> word.startsWith("released"))
                .containsExactly("released t", "released t#1", "released t#12");
    }

    @Test
    void shouldSayThatNoGrantCameForWhatWasExpectedWhenItWasRejected() {
        decoder.cache.onCommand(new EngineCommand.Expect(TRANSFER, PREFILLER));
        finish("r");
        reject("t-r");
        prefiller.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");
        pass(LIMITS.grantWaitNs() - 1);
        assertThat(prefiller.reported).isEmpty();
        pass(1);

        assertThat(prefiller.reported).containsExactly("released r");
        assertThat(prefiller.tally.sum(MessengerMetric.PREFILLS_EXPIRED)).isEqualTo(1);
    }

    @Test
    void shouldServeARequestThatIsSentAgain() {
        finish("r");
        reject("t-r");
        decoder.cache.onCommand(new EngineCommand.Expect(TRANSFER, PREFILLER));
        carry();
        pass(3 * SHORT_NS);
        fetch("r", 1, 0);
        carry();
        assertThat(prefiller.transfer.submitted).isNotEmpty();
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();

        assertThat(prefiller.reported).containsExactly("released r");
        assertThat(prefiller.tally.sum(MessengerMetric.PREFILLS_SENT)).isEqualTo(1);
    }

    @Test
    void shouldWaitAsEverForARequestThatWasSentAgainAndIsCancelledLate() {
        decoder.cache.onCommand(new EngineCommand.Expect(TRANSFER, PREFILLER));
        carry();
        finish("r");
        reject("t-r"); // of another request with the same id
        pass(3 * SHORT_NS);
        assertThat(prefiller.reported).isEmpty();
        decoder.cache.onCommand(new EngineCommand.Decline(TRANSFER, PREFILLER));
        carry();

        assertThat(prefiller.reported).containsExactly("released r");
    }

    @Test
    void shouldLeaveAPrefillAloneThatIsBeingSent() {
        fetch("r", 1, 0);
        carry();
        compute("r", 0);
        reject("t-r");
        pass(2 * SHORT_NS);
        end("r", PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        carry();
        assertThat(prefiller.transfer.submitted).isNotEmpty();
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();

        assertThat(prefiller.tally.sum(MessengerMetric.PREFILLS_SENT)).isEqualTo(1);
    }
}
