package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.Wire;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import org.junit.jupiter.api.Test;

/** What is still known of a transfer when an answer to it comes late. */
class EndedTransfersTest {
    private static final long GRANT_WAIT_NS = 1000;
    private static final long FETCH_LIMIT_NS = 3000;
    private static final ProtocolLimits LIMITS = new ProtocolLimits(GRANT_WAIT_NS, FETCH_LIMIT_NS, 500, 100, 300);
    private static final TransferKey TRANSFER = new TransferKey("t", "");
    private static final EngineCommand.Prompt PROMPT = new EngineCommand.Prompt(new int[] {1}, "", 0);

    private final EndedTransfers ended = new EndedTransfers(LIMITS);

    @Test
    void shouldTellALateAnswerFromANewTransferAsLongAsTheFetchMayLast() {
        ended.remember(new Prefill("r", TRANSFER, Geometries.of("m").groups(), 0), 0);

        assertThat(ended.answerTo(grant(), PROMPT, FETCH_LIMIT_NS)).isInstanceOf(EndedTransfers.Answer.None.class);
        assertThat(ended.answerTo(grant(), PROMPT, FETCH_LIMIT_NS - 1)).isInstanceOf(EndedTransfers.Answer.Late.class);
        assertThat(ended.answerTo(grant(), PROMPT, FETCH_LIMIT_NS - 1))
                .as("each rank answers once")
                .isInstanceOf(EndedTransfers.Answer.None.class);
    }

    @Test
    void shouldTakeOneLateAnswerOfEachRank() {
        ended.remember(new Prefill("r", TRANSFER, Geometries.of("m").groups(), 0), 0);
        DecoderSession first = rank(0);
        DecoderSession second = rank(1);

        assertThat(ended.takeOwed(first, TRANSFER, 1)).isTrue();
        assertThat(ended.takeOwed(second, TRANSFER, 1)).isTrue();
        assertThat(ended.takeOwed(second, TRANSFER, 1))
                .as("its next answer is for another attempt")
                .isFalse();
    }

    @Test
    void shouldTellOnlyItsDecoderHowATransferEnded() {
        Prefill prefill = new Prefill("r", TRANSFER, Geometries.of("m").groups(), 0);
        DecoderSession other = Decoders.attached(Geometries.of("m"), Geometries.of("m"), Wire.DIALLED_LINK + 1);
        PageGrant grant = grant();
        prefill.deliveries.add(new Delivery(prefill, grant, List.of()));
        ended.remember(prefill, 0);

        assertThat(ended.endFor(grant.session(), TRANSFER)).isPresent();
        assertThat(ended.endFor(other, TRANSFER)).isEmpty();
    }

    private static DecoderSession rank(int tpRank) {
        return Decoders.attached(Geometries.of("m"), Geometries.oneOfTwo("m", tpRank, new Sharding(2, 1, 1)));
    }

    private static PageGrant grant() {
        DecoderSession session = Decoders.attached(Geometries.of("m"), Geometries.of("m"));
        return new PageGrant(session, 1, TRANSFER, 1, 1, 0, List.of(new int[] {1}), ContextSlots.NO_SLOT, 0, 0, 0, 0);
    }
}
