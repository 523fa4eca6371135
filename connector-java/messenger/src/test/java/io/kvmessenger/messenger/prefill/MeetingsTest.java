package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.Reachable;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import org.junit.jupiter.api.Test;

/** How much of its prefiller decoders' waiting grants may take, and that what is over is forgotten. */
class MeetingsTest {
    private static final ProtocolLimits LIMITS = new ProtocolLimits(1000, 1000, 500, 100, 300);
    private static final int PAGES_EACH = 60_000;
    private static final int GRANTS_EACH =
            (int) (ProtocolLimits.GRANT_BYTES_WAITING_MAX / ((long) PAGES_EACH * Integer.BYTES));

    private static final TransferKey TRANSFER = new TransferKey("t", "");

    private final Meetings meetings = new Meetings(false, LIMITS);
    private final Prefills prefills = meetings.prefills;
    private int named;

    @Test
    void shouldDeclineGrantsWhosePageListsTakeTooMuchAndTakeThemAgainWhenOthersEnd() {
        DecoderSession greedy = session();
        for (int i = 0; i < GRANTS_EACH; i++) {
            assertThat(taken(greedy, PAGES_EACH)).isTrue();
        }
        assertThat(taken(greedy, PAGES_EACH)).isFalse();
        assertThat(taken(session(), PAGES_EACH)).as("another decoder's").isTrue();

        meetings.withdraw(meetings.of("t1").waiting(greedy, 1).orElseThrow(), "cancelled", 0);
        assertThat(taken(greedy, PAGES_EACH)).isTrue();
        assertThat(meetings.takeFor(
                        new Prefill(
                                "r",
                                new TransferKey("t2", ""),
                                Geometries.of("m").groups(),
                                0),
                        0))
                .isPresent();
        assertThat(taken(greedy, PAGES_EACH)).isTrue();
        assertThat(taken(greedy, PAGES_EACH)).isFalse();

        long lateNs = LIMITS.grantWaitNs();
        for (Due due = meetings.takeDue(Due.KINDS, lateNs); due != null; due = meetings.takeDue(Due.KINDS, lateNs)) {
            PageGrant grant = (PageGrant) due;
            assertThat(meetings.late(grant, lateNs, lateNs)).isPresent();
            meetings.withdraw(grant, "late", lateNs);
        }
        assertThat(meetings.waiting()).isEmpty();
        for (int i = 0; i < GRANTS_EACH; i++) {
            assertThat(taken(greedy, PAGES_EACH)).isTrue();
        }
        meetings.sessionEnded(greedy, "it hung up", 0);
        assertThat(meetings.waiting()).isEmpty();
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
        assertThat(meetings.waiting()).hasSize(ProtocolLimits.GRANTS_WAITING_MAX);
    }

    @Test
    void shouldDeclineAtOnceTheGrantOfASecondDecoderOfAnotherShape() {
        assertThat(taken(session(), 1)).isTrue();
        named--;

        assertThat(taken(rank(1), 1)).as("one prompt, one decoder").isFalse();
    }

    @Test
    void shouldKeepNothingOfAPromptThatIsOver() throws IllegalAccessException {
        Prefill first = ended("r");
        Prefill second = ended("s");
        assertThat(Reachable.from(prefills, String.class)).contains("r", "s", "t");
        meetings.remove(first);
        assertThat(Reachable.from(meetings, Prefill.class)).containsExactly(second);
        meetings.remove(second);

        assertThat(Reachable.from(meetings, Prefill.class)).isEmpty();
        assertThat(Reachable.from(meetings, Meeting.class)).isEmpty();
        assertThat(Reachable.from(prefills, String.class))
                .as("neither its name nor that of its transfer")
                .isEmpty();
    }

    @Test
    void shouldKeepNothingOfGrantsAndAnnouncementsThatAreOver() throws IllegalAccessException {
        DecoderSession session = session();
        assertThat(taken(session, 1)).isTrue();
        meetings.expect(session, TRANSFER, 0);
        meetings.expect(session, TRANSFER, 0);
        meetings.answered(session, TRANSFER);
        assertThat(Reachable.from(meetings, Announcement.class))
                .as("one of two answers is to come")
                .hasSize(1);
        meetings.answered(session, TRANSFER);
        meetings.remove(meetings.waiting().iterator().next());

        assertThat(Reachable.from(meetings, Announcement.class)).isEmpty();
        assertThat(Reachable.from(meetings, PageGrant.class)).isEmpty();
        assertThat(Reachable.from(meetings, Meeting.class)).isEmpty();
        assertThat(session.announced).isEmpty();
        assertThat(session.grantBytesWaiting).isZero();
    }

    @Test
    void shouldReleaseWhatTwoRemovalsOfOneGrantHeldOnce() {
        DecoderSession session = session();
        assertThat(taken(session, 2)).isTrue();
        PageGrant grant = meetings.waiting().iterator().next();
        meetings.remove(grant);
        meetings.remove(grant);

        assertThat(session.grantBytesWaiting).isZero();
    }

    @Test
    void shouldKeepTheDeadlineOfTheFirstOfSeveralAnnouncements() {
        DecoderSession session = session();
        meetings.expect(session, TRANSFER, 0);
        meetings.expect(session, TRANSFER, 1);

        assertThat(meetings.takeDue(Due.KINDS, LIMITS.unheardLimitNs())).isInstanceOf(Announcement.class);
        assertThat(meetings.takeDue(Due.KINDS, 2 * LIMITS.unheardLimitNs())).isNull();
    }

    @Test
    void shouldBoundTheAnnouncementsOfASession() {
        DecoderSession session = session();
        for (int i = 0; i <= ProtocolLimits.EXPECTED_TRANSFERS_MAX; i++) {
            meetings.expect(session, new TransferKey("t" + i, ""), 0);
        }

        assertThat(session.announced).hasSize(ProtocolLimits.EXPECTED_TRANSFERS_MAX);
    }

    @Test
    void shouldLookAgainAtAPromptThatIsNotExpectedAnyMore() {
        Prefill prefill = ended("r");
        DecoderSession session = session();
        meetings.expect(session, TRANSFER, 10);
        assertThat(meetings.takeDue(Due.KINDS, 10)).isSameAs(prefill);
        assertThat(meetings.isExpected(prefill)).isTrue();
        meetings.answered(session, TRANSFER);

        assertThat(meetings.takeDue(Due.KINDS, 10)).isSameAs(prefill);
    }

    private Prefill ended(String request) {
        Prefill prefill = new Prefill(request, TRANSFER, List.of(), 0);
        meetings.add(prefill, 0);
        prefill.become(Prefill.State.ENDED);
        meetings.expireAt(prefill, 10);
        prefills.touch(prefill);
        return prefill;
    }

    private static DecoderSession rank(int tpRank) {
        return Decoders.attached(Geometries.of("m"), Geometries.oneOfTwo("m", tpRank, new Sharding(2, 1, 1)));
    }

    private static DecoderSession session() {
        return Decoders.attached(Geometries.of("m"), Geometries.of("m"));
    }

    private boolean taken(DecoderSession session, int pageCount) {
        PageGrant grant = grant(session, pageCount);
        boolean taken = meetings.refusalOf(grant).isEmpty();
        if (taken) {
            meetings.await(grant);
        }
        return taken;
    }

    private PageGrant grant(DecoderSession session, int pageCount) {
        named++;
        return new PageGrant(
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
                0);
    }
}
