package io.kvmessenger.messenger.session;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.Wire;
import io.kvmessenger.messenger.port.Capacities;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Goodbye;
import io.kvmessenger.messenger.wire.Heartbeat;
import io.kvmessenger.messenger.wire.Hello;
import io.kvmessenger.messenger.wire.SubjectDescription;
import io.kvmessenger.messenger.wire.SubjectFrame;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.TreeSet;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Peers with nothing under way are asked to leave beyond a limit, those with something never; one more waits for a place. */
class IdlePeersTest {
    private static final String KIND = "test";
    private static final ByteString DESCRIPTION = ByteString.copyFromUtf8("all the same");
    private static final int SEEDS = 300;
    private static final ControlFrame WORK = ControlFrame.newBuilder()
            .setSubject(SubjectFrame.getDefaultInstance())
            .build();

    /** Moves nothing; a test says whether something is under way. */
    private static final class Worked extends Session {
        private final List<Worked> leaving;
        boolean busy;
        boolean endsBadly;
        long looks;

        Worked(long link, boolean inbound, String peerAddress, List<Worked> leaving) {
            super(link, inbound, peerAddress);
            this.leaving = leaving;
        }

        @Override
        protected Optional<Misfit> misfit(ByteString peerDescription) {
            return Optional.empty();
        }

        @Override
        protected void onFrame(ControlFrame frame) {}

        @Override
        protected boolean atRest() {
            looks++;
            return !busy;
        }

        @Override
        protected boolean mayLeave() {
            return true;
        }

        @Override
        protected void onLeaving() {
            leaving.add(this);
        }

        @Override
        protected void onEnded(String reason) {
            if (endsBadly) {
                throw new IllegalStateException("a bug at the end");
            }
        }
    }

    private final Map<Long, Worked> byLink = new HashMap<>();
    private final List<Worked> leaving = new ArrayList<>();
    private ProtocolLimits limits = new ProtocolLimits(1000, 1000, 500, 100, 300);
    private SessionsTest.Side listener;
    private long nowNs;

    private void listen(int placesMax, int kept) {
        Capacities most = Capacities.PRODUCTION;
        limits = limits.with(new Capacities(
                most.handshakesMax(),
                placesMax,
                kept,
                most.expectedTransfersMax(),
                most.grantsWaitingMax(),
                most.grantBytesWaitingMax(),
                most.grantBytesWaitingAllMax(),
                most.endedTransfersMax(),
                most.checksumsPerFrameMax()));
        byLink.clear();
        listener = side("listener", 1);
    }

    private SessionsTest.Side side(String name, long incarnation) {
        return new SessionsTest.Side(
                new MessengerIdentity(name, incarnation, new byte[0]),
                KIND,
                DESCRIPTION,
                (side, link, inbound, peerAddress) -> {
                    Worked session = new Worked(link, inbound, peerAddress, leaving);
                    byLink.put(link, session);
                    return session;
                },
                limits);
    }

    private void hello(long link) {
        listener.sessions.onLinkOpened(link, true, "there:" + link, nowNs);
        hear(link, helloOf(link));
    }

    private static ControlFrame helloOf(long link) {
        Hello hello = Hello.newBuilder()
                .setProtocolVersion(ProtocolLimits.PROTOCOL_VERSION)
                .setEngineId("dialler-" + link)
                .setNonce(ByteString.copyFrom(new byte[HandshakeProof.NONCE_LENGTH_BYTES]))
                .setSubject(SubjectDescription.newBuilder().setSubjectKind(KIND).setDescription(DESCRIPTION))
                .build();
        return ControlFrame.newBuilder().setHello(hello).build();
    }

    private void attach(long link) {
        hello(link);
        hear(
                link,
                ControlFrame.newBuilder().setAttach(Attach.getDefaultInstance()).build());
    }

    private void hear(long link, ControlFrame frame) {
        listener.sessions.onFrame(link, frame, nowNs);
    }

    private static ControlFrame idleGoodbye() {
        return ControlFrame.newBuilder()
                .setGoodbye(Goodbye.newBuilder().setSentence("idle").setIdle(true))
                .build();
    }

    /** The links whose peers have been asked since the last call, with the number of frames that were handled. */
    private Map<Long, Long> asked() {
        Map<Long, Long> asked = new HashMap<>();
        for (int i = 0; i < listener.wire.sent.size(); i++) {
            Heartbeat heartbeat = listener.wire.sent.get(i).getHeartbeat();
            if (heartbeat.hasLeaveAfterFrames()) {
                asked.put(listener.wire.links.get(i), heartbeat.getLeaveAfterFrames());
            }
        }
        listener.wire.take();
        return asked;
    }

    @Test
    void shouldAskTheOldestAsManyAsAreTooMany() {
        listen(8, 3);
        LongStream.rangeClosed(1, 3).forEach(this::attach);
        assertThat(asked()).isEmpty();
        attach(4);
        assertThat(asked()).containsOnlyKeys(1L);
        attach(5);
        listener.sessions.tick(nowNs);
        assertThat(asked()).as("soon after another look").isEmpty();

        nowNs += limits.heartbeatNs();
        listener.sessions.tick(nowNs);
        assertThat(asked()).as("others, as the first does not leave").containsOnlyKeys(2L, 3L);
    }

    /** A look visits every busy peer, and something is due for one of so many at each moment. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void shouldLookAtBusyPeersAFewTimesInAHeartbeat(boolean oneWaits) {
        int peers = ProtocolLimits.DECODERS_MAX;
        int beats = 4;
        limits = new ProtocolLimits(1_000_000, 1_000_000, 1_000_000, 100_000, 10_000_000);
        listen(peers, 100);
        for (long link = 1; link <= peers; link++) {
            attach(link);
            byLink.get(link).busy = true;
            nowNs += limits.heartbeatNs() / peers;
        }
        tickFor(2 * limits.heartbeatNs());
        byLink.values().forEach(session -> session.looks = 0);
        if (oneWaits) {
            hello(peers + 1);
        }
        assertThat(tickFor(beats * limits.heartbeatNs())).isGreaterThan(beats * peers / 2);
        long turns =
                byLink.values().stream().mapToLong(session -> session.looks).sum() / peers;
        long due = beats * (oneWaits ? 8L : 1L);
        assertThat(turns).isBetween(due / 2, due + 1);
    }

    /** Ticks whenever something is due; returns how often. */
    private int tickFor(long lengthNs) {
        int ticks = 0;
        for (long endNs = nowNs + lengthNs; nowNs < endNs; ticks++) {
            nowNs = Math.max(nowNs + 1, listener.sessions.nextDeadlineNs(nowNs));
            listener.sessions.tick(nowNs);
        }
        asked();
        return ticks;
    }

    @Test
    void shouldLetAnAskedPeerGoWithoutAWordInTheLog() {
        listen(8, 1);
        attach(1);
        attach(2);
        assertThat(asked()).containsOnlyKeys(1L);
        hear(1, idleGoodbye());

        assertThat(listener.sessions.count()).isEqualTo(1);
        assertThat(listener.tally.sum(MessengerMetric.LINKS_IDLED)).isEqualTo(1);
        assertThat(listener.tally.sum(MessengerMetric.LINKS_LOST)).isZero();
        assertThat(listener.engine.lines).isEmpty();
    }

    /** However close its frames are: one that is always used goes after one that was used once, and later. */
    @Test
    void shouldKeepAPeerThatSendsMoreOftenThanItIsLookedAt() {
        long beats = 100;
        for (long pauseNs = 1; pauseNs < 2 * limits.heartbeatNs(); pauseNs += limits.heartbeatNs() / 7) {
            listen(8, 2);
            attach(1);
            attach(2);
            hear(2, WORK);
            for (long endNs = nowNs + beats * limits.heartbeatNs(); nowNs < endNs; nowNs += pauseNs) {
                hear(1, WORK);
                hear(2, heartbeat());
                listener.sessions.tick(nowNs);
            }
            asked();
            attach(3);
            assertThat(asked()).as("frames each " + pauseNs + " ns").containsOnlyKeys(2L);
        }
    }

    /** A goodbye that calls itself idle is believed only where nothing is under way and it was asked for. */
    @Test
    void shouldCountAnyOtherEndAsALoss() {
        for (int kind = 0; kind < 3; kind++) {
            listen(8, 1);
            attach(1);
            if (kind > 0) {
                attach(2);
                assertThat(asked()).containsOnlyKeys(1L);
            }
            if (kind == 1) {
                byLink.get(1L).busy = true;
            } else if (kind == 2) {
                hear(1, WORK);
            }
            hear(1, idleGoodbye());
            assertThat(listener.tally.sum(MessengerMetric.LINKS_LOST)).isEqualTo(1);
            assertThat(listener.tally.sum(MessengerMetric.LINKS_IDLED)).isZero();
            assertThat(listener.engine.lines).hasSize(1);
        }
    }

    /** In any order of arrivals, uses, ends and time: no busy peer is asked, and no idle one is spared for ever. */
    @Test
    void shouldNeverAskABusyPeerAndReachEveryIdleOne() {
        for (long seed = 1; seed <= SEEDS; seed++) {
            SplittableRandom random = new SplittableRandom(seed);
            int kept = random.nextInt(4);
            listen(64, kept);
            Set<Long> here = new TreeSet<>();
            for (long link = 1; link < 40; link++) {
                attach(link);
                here.add(link);
                judge(seed, here, true);
                act(random, here);
                judge(seed, here, random.nextInt(3) > 0);
            }
            byLink.values().forEach(session -> session.busy = false);
            for (int beat = 0; beat < 64 && here.size() > kept; beat++) {
                nowNs += limits.heartbeatNs();
                here.forEach(link -> hear(link, heartbeat()));
                listener.sessions.tick(nowNs);
                judge(seed, here, true);
            }
            assertThat(here).as("seed " + seed).hasSizeLessThanOrEqualTo(kept);
            assertThat(listener.tally.sum(MessengerMetric.LINKS_LOST)).isZero();
            assertThat(listener.engine.lines).isEmpty();
        }
    }

    private static ControlFrame heartbeat() {
        return ControlFrame.newBuilder()
                .setHeartbeat(Heartbeat.getDefaultInstance())
                .build();
    }

    private void act(SplittableRandom random, Set<Long> here) {
        List<Long> links = List.copyOf(here);
        for (int i = random.nextInt(3); i > 0 && !links.isEmpty(); i--) {
            long link = links.get(random.nextInt(links.size()));
            byLink.get(link).busy = random.nextBoolean();
            hear(link, WORK);
        }
        nowNs += random.nextInt((int) limits.heartbeatNs() / 2);
        here.forEach(link -> hear(link, heartbeat()));
        listener.sessions.tick(nowNs);
    }

    private void judge(long seed, Set<Long> here, boolean leave) {
        asked().forEach((link, frames) -> {
            assertThat(byLink.get(link).busy)
                    .as("seed " + seed + ", link " + link)
                    .isFalse();
            assertThat(byLink.get(link).framesHandled).isEqualTo(frames);
            if (leave && here.remove(link)) {
                hear(link, idleGoodbye());
            }
        });
    }

    @Test
    void shouldWelcomeOneMoreWhenAnIdlePeerHasLeft() {
        listen(2, 2);
        attach(1);
        attach(2);
        byLink.get(1L).busy = true;
        listener.wire.take();
        hello(3);
        assertThat(listener.wire.sent).noneMatch(ControlFrame::hasWelcome);
        assertThat(asked()).containsOnlyKeys(2L);

        hear(2, idleGoodbye());
        assertThat(listener.wire.take()).anyMatch(ControlFrame::hasWelcome);
        hear(3, ControlFrame.newBuilder().setAttach(Attach.getDefaultInstance()).build());
        assertThat(listener.sessions.readyCount()).isEqualTo(2);
    }

    /** A bug of the subject ends one session, and keeps no place for ever. */
    @Test
    void shouldFreeThePlaceOfASessionWhoseEndMeetsABug() {
        listen(1, 1);
        attach(1);
        byLink.get(1L).endsBadly = true;
        hello(2);
        asked();
        assertThatThrownBy(() -> listener.sessions.onLinkClosed(1, "gone")).hasMessage("a bug at the end");
        assertThat(byLink.get(2L).state()).isEqualTo(Session.State.WELCOMED);
    }

    /** It comes late with its Hello, waits nearly as long as it may, and has its time to attach. */
    @Test
    void shouldNotCountTheWaitForAPlaceAsTheHandshakes() {
        for (long lateNs = 0; lateNs < limits.connectLimitNs(); lateNs += limits.connectLimitNs() / 8) {
            for (long waitNs = 0; waitNs < limits.placeWaitNs(); waitNs += limits.placeWaitNs() / 4) {
                listen(1, 1);
                listener.sessions.onLinkOpened(2, true, "there:2", nowNs);
                nowNs += lateNs;
                attach(1);
                hear(2, helloOf(2));
                assertThat(byLink.get(2L).place).isEqualTo(Session.Place.AWAITED);
                waitThrough(waitNs);
                listener.sessions.onLinkClosed(1, "gone");
                waitThrough(limits.heartbeatNs());
                hear(
                        2,
                        ControlFrame.newBuilder()
                                .setAttach(Attach.getDefaultInstance())
                                .build());
                assertThat(byLink.get(2L).ready())
                        .as("late by " + lateNs + ", waits " + waitNs)
                        .isTrue();
            }
        }
    }

    /** Ticks come at any time, as something is due for other peers. */
    private void waitThrough(long lengthNs) {
        for (long endNs = nowNs + lengthNs; nowNs < endNs; ) {
            nowNs = Math.min(endNs, nowNs + limits.heartbeatNs());
            listener.sessions.onLinkOpened(100, true, "other:1", nowNs - limits.connectLimitNs()); // due at once
            if (byLink.get(1L).ready()) {
                hear(1, heartbeat());
            }
            listener.sessions.tick(nowNs);
        }
    }

    /** Ends while waiting, refusals, and more that wait than there are places: each gets a place or a sentence. */
    @Test
    void shouldAnswerEachThatWaits() {
        listen(2, 2);
        attach(1);
        attach(2);
        byLink.values().forEach(session -> session.busy = true);
        LongStream.rangeClosed(3, 5).forEach(this::hello);
        assertThat(byLink.get(5L).state()).as("only two may wait").isEqualTo(Session.State.ENDED);
        listener.sessions.onLinkClosed(3, "gone");
        hello(6);
        nowNs += limits.placeWaitNs() - 1;
        listener.sessions.tick(nowNs);
        listener.wire.take();
        hear(
                1,
                ControlFrame.newBuilder()
                        .setGoodbye(Goodbye.getDefaultInstance())
                        .build());
        assertThat(listener.wire.take()).singleElement().matches(ControlFrame::hasWelcome);
        assertThat(byLink.get(4L).state()).isEqualTo(Session.State.WELCOMED);
        nowNs++;
        hear(2, WORK);
        listener.sessions.tick(nowNs);
        assertThat(listener.wire.take())
                .anySatisfy(frame -> assertThat(frame.getRefusal().getSentence())
                        .contains("serves 2 decoders already, none of which has left", "use another prefiller"));
        assertThat(byLink.get(6L).state()).isEqualTo(Session.State.ENDED);
    }

    /** The dialler leaves in one case out of eight: asked after all that it sent, with nothing under way, and alive. */
    @Test
    void shouldLeaveOnlyWhereNothingCrosses() {
        for (int which = 0; which < 8; which++) {
            boolean busy = (which & 1) > 0;
            boolean crosses = (which & 2) > 0;
            boolean ends = (which & 4) > 0;
            listen(8, 8);
            SessionsTest.Side dialler = side("dialler", 2);
            Worked session = dialled(dialler);
            session.busy = busy;
            dialler.sessions.send(session, WORK.toBuilder());
            dialler.wire.take();
            if (ends) {
                dialler.sessions.endUnlessExplained(session, "its data paths ended", nowNs);
            }
            Heartbeat ask =
                    Heartbeat.newBuilder().setLeaveAfterFrames(crosses ? 0 : 1).build();
            dialler.sessions.onFrame(
                    Wire.DIALLED_LINK,
                    ControlFrame.newBuilder().setHeartbeat(ask).build(),
                    nowNs);

            boolean leaves = !busy && !crosses && !ends;
            assertThat(leaving.contains(session)).isEqualTo(leaves);
            assertThat(dialler.wire.take().stream()
                            .anyMatch(frame -> frame.getGoodbye().getIdle()))
                    .isEqualTo(leaves);
            assertThat(session.takesWork()).isEqualTo(!leaves && !ends);
            if (leaves) {
                dialler.sessions.onLinkClosed(Wire.DIALLED_LINK, "closed");
                assertThat(dialler.tally.sum(MessengerMetric.LINKS_IDLED)).isEqualTo(1);
                assertThat(dialler.tally.sum(MessengerMetric.LINKS_LOST)).isZero();
                assertThat(dialler.engine.lines).isEmpty();
            }
        }
    }

    /** The listener closes the link. One that has stopped does not, and is not waited for. */
    @Test
    void shouldLeaveAListenerThatDoesNotCloseTheLink() {
        listen(8, 8);
        SessionsTest.Side dialler = side("dialler", 2);
        Worked session = dialled(dialler);
        Heartbeat ask = Heartbeat.newBuilder().setLeaveAfterFrames(0).build();
        dialler.sessions.onFrame(
                Wire.DIALLED_LINK, ControlFrame.newBuilder().setHeartbeat(ask).build(), nowNs);
        assertThat(dialler.wire.closed).isFalse();

        nowNs += limits.lastWordWaitNs();
        dialler.sessions.tick(nowNs);
        assertThat(dialler.wire.closed).isTrue();
        assertThat(session.state()).isEqualTo(Session.State.ENDED);
        assertThat(dialler.tally.sum(MessengerMetric.LINKS_IDLED)).isEqualTo(1);
        assertThat(dialler.engine.lines).isEmpty();
    }

    /** A session of the dialler that is ready. */
    private Worked dialled(SessionsTest.Side dialler) {
        Worked session = (Worked) dialler.dial(nowNs);
        listener.sessions.onLinkOpened(Wire.DIALLED_LINK, true, "there:1", nowNs);
        dialler.sessions.onLinkOpened(Wire.DIALLED_LINK, false, "host:7", nowNs);
        while (!listener.wire.sent.isEmpty() || !dialler.wire.sent.isEmpty()) {
            listener.wire.take().forEach(f -> dialler.sessions.onFrame(Wire.DIALLED_LINK, f, nowNs));
            dialler.wire.take().forEach(f -> hear(Wire.DIALLED_LINK, f));
        }
        assertThat(session.ready()).isTrue();
        return session;
    }
}
