package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

/** An id that is used again and again, as by a client that gives all of its requests one. */
class ContradictionsTest {
    private static final long SECOND_NS = 1_000_000_000L;
    private static final String ID = "one-id";
    private static final ProtocolLimits LIMITS =
            new ProtocolLimits(120 * SECOND_NS, 300 * SECOND_NS, SECOND_NS, SECOND_NS, SECOND_NS);
    private static final long WAIT_NS = LIMITS.contradictionWaitNs();

    private final Meetings meetings = new Meetings(false, LIMITS);
    private final DecoderSession session = Decoders.attached(Geometries.of("m"), Geometries.of("m"));
    private final List<String> stopped = new ArrayList<>();
    private long nowNs;
    private int grants;

    @Test
    void shouldFindAContradictionThatBeganWhileAnotherWasLookedInto() {
        grant("a");
        Prefill b = announce("b");
        nowNs += WAIT_NS - SECOND_NS;
        meetings.remove(b);
        Prefill d = announce("d");
        look();
        nowNs += SECOND_NS;
        look();
        assertThat(stopped).as("a second is not long").isEmpty();

        nowNs += WAIT_NS;
        look();
        assertThat(meetings.waiting()).isEmpty();
        assertThat(stopped).as("its decoder may ask once more").isEmpty();

        nowNs += WAIT_NS;
        look();
        assertThat(stopped).containsExactly(d.request);
    }

    @Test
    void shouldEndAllRequestsOfOnePromptThatAreAskedForByAnotherName() {
        announce("b");
        announce("b");
        grant("a");
        grant("a");
        nowNs += WAIT_NS;
        look();
        assertThat(meetings.waiting()).isEmpty();
        nowNs += WAIT_NS;
        look();

        assertThat(stopped).hasSize(2);
        assertThat(meetings.of(ID).toCompare).isFalse();
    }

    /** Each prompt waits once: a decoder that asks again and again by a name that is not here keeps none of them. */
    @Test
    void shouldEndAPromptWhoseDecoderAsksOnceMoreByAnotherName() {
        grant("a");
        Prefill b = announce("b");
        nowNs += WAIT_NS;
        look();
        grant("c");
        nowNs += WAIT_NS;
        look();

        assertThat(stopped).containsExactly(b.request);
    }

    /** The prompts of a second contradiction wait as those of the first did. */
    @Test
    void shouldGiveThePromptsOfALaterContradictionTheirOwnTime() {
        grant("a");
        Prefill b = announce("b");
        nowNs += WAIT_NS;
        look();
        grant("c");
        Prefill d = announce("d");
        nowNs += WAIT_NS;
        look();
        assertThat(stopped).containsExactly(b.request);
        assertThat(meetings.waiting()).isEmpty();

        nowNs += WAIT_NS;
        look();
        assertThat(stopped).containsExactly(b.request, d.request);
        assertThat(meetings.of(ID).toCompare).isFalse();
    }

    @Test
    void shouldLookOnlyWhileThereIsSomethingToSee() {
        grant("a");
        Prefill b = announce("b");
        meetings.remove(b);
        nowNs += WAIT_NS;
        look();

        assertThat(meetings.of(ID).toCompare).isFalse();
    }

    private void look() {
        for (Due due = meetings.takeDue(Due.KINDS, nowNs); due != null; due = meetings.takeDue(Due.KINDS, nowNs)) {
            if (due instanceof Meeting meeting) {
                end(meetings.compare(meeting, nowNs));
                meetings.compareLater(ID, nowNs);
            }
        }
    }

    private void end(Meeting.Contradiction legs) {
        legs.grants().forEach(grant -> meetings.withdraw(grant, legs.sentence(), nowNs));
        for (Prefill prefill : legs.prefills()) {
            prefill.stop(new Stop(Reason.EXPIRED, legs.sentence()));
            stopped.add(prefill.request);
        }
    }

    private Prefill announce(String digest) {
        Prefill prefill = new Prefill(
                "r" + meetings.prefills.count(),
                new TransferKey(ID, digest),
                Geometries.of("m").groups(),
                nowNs);
        prefill.announcement = Prefill.Announcement.ANNOUNCED;
        meetings.add(prefill, nowNs);
        meetings.compareLater(ID, nowNs);
        return prefill;
    }

    private void grant(String digest) {
        grants++;
        meetings.await(new PageGrant(
                session,
                grants,
                new TransferKey(ID, digest),
                1,
                1,
                0,
                List.of(new int[1]),
                ContextSlots.NO_SLOT,
                0,
                0,
                0,
                nowNs));
        meetings.compareLater(ID, nowNs);
    }
}
