package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.Wire;
import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import org.junit.jupiter.api.Test;

/** What is still known of a transfer when an answer to it comes late, or came before its prefill. */
class TransferMemoryTest {
    private static final long GRANT_WAIT_NS = 1000;
    private static final long FETCH_LIMIT_NS = 3000;
    private static final ProtocolLimits LIMITS = new ProtocolLimits(GRANT_WAIT_NS, FETCH_LIMIT_NS, 500, 100, 300);
    private static final TransferKey TRANSFER = new TransferKey("t", "");
    private static final EngineCommand.Prompt PROMPT = new EngineCommand.Prompt(new int[] {1}, "", 0);

    private final TransferMemory memory = new TransferMemory(LIMITS);

    @Test
    void shouldDistinguishALateAnswerFromANewTransferAsLongAsTheFetchMayLast() {
        memory.ended(new Prefill("r", TRANSFER, Geometries.of("m").groups(), 0), 0);

        assertThat(memory.takeLate(grant(), PROMPT, FETCH_LIMIT_NS)).isEmpty();
        assertThat(memory.takeLate(grant(), PROMPT, FETCH_LIMIT_NS - 1)).isPresent();
        assertThat(memory.takeLate(grant(), PROMPT, FETCH_LIMIT_NS - 1))
                .as("each rank answers once")
                .isEmpty();
    }

    @Test
    void shouldTakeOneLateAnswerOfEachRank() {
        memory.ended(new Prefill("r", TRANSFER, Geometries.of("m").groups(), 0), 0);
        DecoderSession first = rank(0);
        DecoderSession second = rank(1);

        assertThat(memory.takeOwed(first, TRANSFER, 1)).isTrue();
        assertThat(memory.takeOwed(second, TRANSFER, 1)).isTrue();
        assertThat(memory.takeOwed(second, TRANSFER, 1))
                .as("its next answer is for another attempt")
                .isFalse();
        assertThat(memory.takeOwed(first, TRANSFER, 1)).as("so is the other's").isFalse();
    }

    @Test
    void shouldNotifyOnlyItsDecoderHowATransferEnded() {
        Prefill prefill = new Prefill("r", TRANSFER, Geometries.of("m").groups(), 0);
        DecoderSession other = Decoders.attached(Geometries.of("m"), Geometries.of("m"), Wire.DIALLED_LINK + 1);
        PageGrant grant = grant();
        prefill.deliveries.add(new Delivery(prefill, grant, List.of()));
        memory.ended(prefill, 0);

        assertThat(memory.endFor(grant.session(), TRANSFER)).isPresent();
        assertThat(memory.endFor(other, TRANSFER)).isEmpty();
    }

    @Test
    void shouldNotCountARankAsDeclinedThatHasGrantedSince() {
        dismiss(rank(0), 0);
        memory.granted(TRANSFER, rank(0).peerCache().ranks());

        assertThat(memory.takeDismissed(TRANSFER, 0)).isEmpty();
    }

    @Test
    void shouldNotCountWhatWasDeclinedForAnEarlierRequestOfThatId() {
        long later = GRANT_WAIT_NS + 1;
        dismiss(rank(0), 0);
        dismiss(rank(1), later);

        assertThat(memory.takeDismissed(TRANSFER, later))
                .hasValueSatisfying(dismissal -> assertThat(
                                dismissal.ranks().intersects(rank(0).peerCache().ranks()))
                        .isFalse());
    }

    @Test
    void shouldCountAllRanksThatDeclinedARequest() {
        dismiss(rank(0), 0);
        dismiss(rank(1), 1);

        assertThat(memory.takeDismissed(TRANSFER, 1))
                .hasValueSatisfying(
                        dismissal -> assertThat(dismissal.ranks().complete()).isTrue());
        assertThat(memory.takeDismissed(TRANSFER, 1)).as("taken once").isEmpty();
    }

    private void dismiss(DecoderSession session, long nowNs) {
        EngineRanks ranks = session.peerCache().ranks();
        memory.dismiss(TRANSFER, ranks, session.peerCache().needingRanks(), "declined", nowNs);
    }

    private static DecoderSession rank(int tpRank) {
        return Decoders.attached(Geometries.of("m"), Geometries.oneOfTwo("m", tpRank, new Sharding(2, 1, 1)));
    }

    private static PageGrant grant() {
        DecoderSession session = Decoders.attached(Geometries.of("m"), Geometries.of("m"));
        return new PageGrant(session, 1, TRANSFER, 1, 1, 0, List.of(new int[] {1}), ContextSlots.NO_SLOT, 0, 0, 0, 0);
    }
}
