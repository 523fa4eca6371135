package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.messenger.CountingTally;
import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.SilentEngine;
import io.kvmessenger.messenger.Wire;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.messenger.session.PeerWarnings;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.Test;

/** How much of its prefiller decoders' waiting grants may take. */
class WaitingGrantsTest {
    private static final ProtocolLimits LIMITS = new ProtocolLimits(1000, 1000, 500, 100, 300);
    private static final int PAGES_EACH = 60_000;
    private static final int GRANTS_EACH =
            (int) (ProtocolLimits.GRANT_BYTES_WAITING_MAX / ((long) PAGES_EACH * Integer.BYTES));

    private final Wire wire = new Wire();
    private final Sessions sessions = new Sessions(
            new MessengerIdentity("p", 1, new byte[0]),
            wire,
            LIMITS,
            new CountingTally(),
            new SplittableRandom(1),
            new PeerWarnings(new SilentEngine(), () -> 0));
    private final Prefills prefills = new Prefills(false);
    private final WaitingGrants waiting = new WaitingGrants(
            new Replies(sessions, new CountingTally()),
            new NoIntake(),
            new SilentEngine(),
            LIMITS,
            prefills,
            new EndedTransfers(LIMITS));
    private int named;

    @Test
    void shouldDeclineGrantsWhosePageListsTakeTooMuchAndTakeThemAgainWhenOthersEnd() {
        DecoderSession greedy = session();
        for (int i = 0; i < GRANTS_EACH; i++) {
            assertThat(taken(greedy, PAGES_EACH)).isTrue();
        }
        assertThat(taken(greedy, PAGES_EACH)).isFalse();
        assertThat(taken(session(), PAGES_EACH)).as("another decoder's").isTrue();

        assertThat(waiting.cancel(greedy, "t1", 1, 0)).isTrue();
        assertThat(taken(greedy, PAGES_EACH)).isTrue();
        assertThat(waiting.takeFor(
                        new Prefill(
                                "r",
                                new TransferKey("t2", ""),
                                Geometries.of("m").groups(),
                                0),
                        0))
                .isPresent();
        assertThat(taken(greedy, PAGES_EACH)).isTrue();
        assertThat(taken(greedy, PAGES_EACH)).isFalse();

        waiting.expire(LIMITS.grantWaitNs(), LIMITS.grantWaitNs());
        assertThat(waiting.count()).isZero();
        wire.take();
        for (int i = 0; i < GRANTS_EACH; i++) {
            assertThat(taken(greedy, PAGES_EACH)).isTrue();
        }
        waiting.drop(greedy, "it hung up", 0);
        assertThat(waiting.count()).isZero();
        assertThat(taken(greedy, PAGES_EACH)).isTrue();
    }

    @Test
    void shouldBoundThePageListsOfAllDecodersTogether() {
        long all = ProtocolLimits.GRANT_BYTES_WAITING_ALL_MAX / ((long) PAGES_EACH * Integer.BYTES);
        DecoderSession session = session();
        for (int i = 0; i < all; i++) {
            if (i % GRANTS_EACH == 0) {
                session = session();
            }
            assertThat(taken(session, PAGES_EACH)).isTrue();
        }
        assertThat(taken(session(), PAGES_EACH)).isFalse();
    }

    @Test
    void shouldBoundTheNumberOfGrants() {
        DecoderSession session = session();
        for (int i = 0; i < ProtocolLimits.GRANTS_WAITING_MAX; i++) {
            assertThat(taken(session, 1)).isTrue();
        }
        assertThat(taken(session, 1)).isFalse();
        assertThat(waiting.count()).isEqualTo(ProtocolLimits.GRANTS_WAITING_MAX);
    }

    @Test
    void shouldSayWhatToSetWhereAPromptIsBroughtThatTheEngineCannotBeAskedFor() {
        await(session(), 1, new EngineCommand.Prompt(new int[] {5, 6}, "", 0));
        assertThat(wire.take())
                .filteredOn(ControlFrame::hasCannotDeliver)
                .singleElement()
                .extracting(frame -> frame.getCannotDeliver().getSentence())
                .asString()
                .contains("came to the decoder only")
                .endsWith("set engine_api_url on the prefiller");
        assertThat(waiting.count()).isZero();
    }

    @Test
    void shouldNotCountARankAsDeclinedThatHasGrantedSince() {
        DecoderSession session = session();
        TransferKey transfer = new TransferKey("t1", "");
        waiting.dismiss(transfer, session, WaitingGrants.CANCELLED, 0);

        assertThat(taken(session, 1)).isTrue();
        assertThat(waiting.takeDismissed(transfer, 0)).isEmpty();
    }

    @Test
    void shouldNotCountWhatWasDeclinedForAnEarlierRequestOfThatId() {
        TransferKey transfer = new TransferKey("t1", "");
        DecoderSession first = rank(0);
        DecoderSession second = rank(1);
        waiting.dismiss(transfer, first, WaitingGrants.DECLINED, 0);
        long later = LIMITS.grantWaitNs() + 1;
        waiting.dismiss(transfer, second, WaitingGrants.DECLINED, later);

        assertThat(waiting.takeDismissed(transfer, later))
                .hasValueSatisfying(dismissal -> assertThat(
                                dismissal.ranks().intersects(first.peerCache().ranks()))
                        .isFalse());
    }

    @Test
    void shouldDeclineAtOnceTheGrantOfASecondDecoderOfAnotherShape() {
        assertThat(taken(session(), 1)).isTrue();
        named--;

        assertThat(taken(rank(1), 1)).as("one prompt, one decoder").isFalse();
    }

    private static DecoderSession rank(int tpRank) {
        return Decoders.attached(Geometries.of("m"), Geometries.oneOfTwo("m", tpRank, new Sharding(2, 1, 1)));
    }

    private static DecoderSession session() {
        return Decoders.attached(Geometries.of("m"), Geometries.of("m"));
    }

    private boolean taken(DecoderSession session, int pageCount) {
        await(session, pageCount, EngineCommand.Prompt.NONE);
        return wire.take().stream().noneMatch(ControlFrame::hasCannotDeliver);
    }

    private void await(DecoderSession session, int pageCount, EngineCommand.Prompt prompt) {
        named++;
        waiting.await(
                new PageGrant(
                        session,
                        named,
                        new TransferKey("t" + named, ""),
                        1,
                        pageCount,
                        0,
                        List.of(new int[pageCount]),
                        ContextSlots.NO_SLOT,
                        0,
                        0,
                        0,
                        0),
                prompt);
    }

    /** An engine that is asked for nothing. */
    private static final class NoIntake implements EngineIntake {
        @Override
        public boolean available() {
            return false;
        }

        @Override
        public void enqueue(TransferKey transfer, EngineCommand.Prompt prompt) {}
    }
}
