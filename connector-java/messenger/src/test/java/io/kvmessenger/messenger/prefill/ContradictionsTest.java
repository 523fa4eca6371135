package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;

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
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.Test;

/** An id that is used again and again, as by a client that gives all of its requests one. */
class ContradictionsTest {
    private static final long SECOND_NS = 1_000_000_000L;
    private static final String ID = "one-id";
    private static final ProtocolLimits LIMITS =
            new ProtocolLimits(120 * SECOND_NS, 300 * SECOND_NS, SECOND_NS, SECOND_NS, SECOND_NS);
    private static final long WAIT_NS = LIMITS.contradictionWaitNs();

    private final Sessions sessions = new Sessions(
            new MessengerIdentity("p", 1, new byte[0]),
            new Wire(),
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
    private final Contradictions contradictions = new Contradictions(prefills, waiting, new SilentEngine(), LIMITS);
    private final DecoderSession session = Decoders.attached(Geometries.of("m"), Geometries.of("m"));
    private final List<String> stopped = new ArrayList<>();
    private long nowNs;
    private int grants;

    @Test
    void shouldFindAContradictionThatBeganWhileAnotherWasLookedInto() {
        grant("a");
        Prefill b = announce("b");
        nowNs += WAIT_NS - SECOND_NS;
        prefills.remove(b);
        Prefill d = announce("d");
        look();
        nowNs += SECOND_NS;
        look();
        assertThat(stopped).as("a second is not long").isEmpty();

        nowNs += WAIT_NS;
        look();
        assertThat(stopped).containsExactly(d.request);
        assertThat(waiting.count()).isZero();
    }

    @Test
    void shouldEndAllRequestsOfOnePromptThatAreAskedForByAnotherName() {
        announce("b");
        announce("b");
        grant("a");
        grant("a");
        nowNs += WAIT_NS;
        look();

        assertThat(stopped).hasSize(2);
        assertThat(waiting.count()).isZero();
    }

    @Test
    void shouldLookOnlyWhileThereIsSomethingToSee() {
        grant("a");
        Prefill b = announce("b");
        prefills.remove(b);
        nowNs += WAIT_NS;
        look();

        assertThat(contradictions.earliestNs(Long.MAX_VALUE)).isEqualTo(Long.MAX_VALUE);
    }

    private void look() {
        contradictions.endOld(nowNs, prefill -> false, (prefill, why) -> {
            prefill.stop(new Stop(Reason.EXPIRED, why));
            stopped.add(prefill.request);
        });
    }

    private Prefill announce(String digest) {
        Prefill prefill = new Prefill(
                "r" + prefills.count(),
                new TransferKey(ID, digest),
                Geometries.of("m").groups(),
                nowNs);
        prefill.announcement = Prefill.Announcement.ANNOUNCED;
        prefills.add(prefill);
        contradictions.note(ID, nowNs);
        return prefill;
    }

    private void grant(String digest) {
        grants++;
        waiting.await(
                new PageGrant(
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
                        nowNs),
                EngineCommand.Prompt.NONE);
        contradictions.note(ID, nowNs);
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
