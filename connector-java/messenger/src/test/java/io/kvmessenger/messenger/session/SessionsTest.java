package io.kvmessenger.messenger.session;

import static org.assertj.core.api.Assertions.assertThat;

import com.google.protobuf.ByteString;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.CountingTally;
import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.SilentEngine;
import io.kvmessenger.messenger.Wire;
import io.kvmessenger.messenger.kv.KvDescription;
import io.kvmessenger.messenger.kv.KvFrameRules;
import io.kvmessenger.messenger.kv.KvSession;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.Challenge;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Geometry;
import io.kvmessenger.messenger.wire.GeometryWire;
import io.kvmessenger.messenger.wire.Goodbye;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.messenger.wire.Heartbeat;
import io.kvmessenger.messenger.wire.Hello;
import io.kvmessenger.transfer.Admission;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.Test;

class SessionsTest {
    private static final ProtocolLimits LIMITS = new ProtocolLimits(1000, 1000, 500, 100, 300);

    /** Frames are put in by hand here; what a secret changes is {@link HandshakeTest}'s. */
    private static final String NO_SECRET = "";

    /** Makes a side's session with a peer. */
    interface Maker {
        Session session(Side side, long link, boolean inbound, String peerAddress);
    }

    /** One side: its sessions, its end of the network, and what it heard. */
    static final class Side implements Subject {
        final Wire wire = new Wire();
        final CountingTally tally = new CountingTally();
        final SilentEngine engine = new SilentEngine();
        final Sessions sessions;
        final List<String> ended = new ArrayList<>();
        final List<ControlFrame> frames = new ArrayList<>();
        boolean ready;
        Session session;
        Attach attached;
        private final String kind;
        private final ByteString description;
        private final Maker maker;

        Side(String name, String secret, KvGeometry geometry, long seed) {
            this(new MessengerIdentity(name, seed, secret.getBytes(StandardCharsets.UTF_8)), geometry);
        }

        Side(MessengerIdentity identity, KvGeometry geometry) {
            this(
                    identity,
                    KvDescription.KIND,
                    KvDescription.encode(geometry),
                    (side, link, inbound, peerAddress) ->
                            new HeardKvSession(geometry, side, link, inbound, peerAddress));
        }

        Side(MessengerIdentity identity, String kind, ByteString description, Maker maker) {
            this(identity, kind, description, maker, LIMITS);
        }

        Side(MessengerIdentity identity, String kind, ByteString description, Maker maker, ProtocolLimits limits) {
            this.kind = kind;
            this.description = description;
            this.maker = maker;
            sessions = new Sessions(
                    identity,
                    wire,
                    limits,
                    tally,
                    new SplittableRandom(identity.incarnation()),
                    new PeerWarnings(engine, () -> 0));
            sessions.carry(this);
        }

        Session dial(long nowNs) {
            return sessions.dial(
                    "host", 7, (link, peerAddress) -> maker.session(this, link, false, peerAddress), nowNs);
        }

        void onReady(Session opened) {
            ready = true;
            session = opened;
        }

        @Override
        public String kind() {
            return kind;
        }

        @Override
        public ByteString description() {
            return description;
        }

        @Override
        public Roles roles() {
            return new Roles("prefiller", "decoder");
        }

        @Override
        public Session accept(long link, String peerAddress) {
            return maker.session(this, link, true, peerAddress);
        }

        @Override
        public String broken(ControlFrame frame) {
            return kind.equals(KvDescription.KIND) ? KvFrameRules.broken(frame) : "";
        }
    }

    /** Notes what it hears. */
    private static final class HeardKvSession extends KvSession {
        private final SessionsTest.Side heardBy;

        HeardKvSession(KvGeometry geometry, SessionsTest.Side heardBy, long link, boolean inbound, String peerAddress) {
            super(new KvSession.Side(geometry, new SilentEngine(), new CountingTally()), link, inbound, peerAddress);
            this.heardBy = heardBy;
        }

        @Override
        protected void admit(Attach.Builder attach) {
            attach.setAdmissionKey(concealed(ByteString.copyFrom(new byte[Admission.KEY_LENGTH_BYTES])));
        }

        @Override
        protected void attached(Attach attach) {
            heardBy.attached = attach.toBuilder()
                    .setAdmissionKey(concealed(attach.getAdmissionKey()))
                    .build();
        }

        @Override
        protected void onReady() {
            super.onReady();
            heardBy.onReady(this);
        }

        @Override
        protected void onFrame(ControlFrame frame) {
            heardBy.frames.add(frame);
        }

        @Override
        protected void endTransfers(String reason) {
            heardBy.ended.add(reason);
        }
    }

    private final Side prefiller = new Side("prefiller-1", NO_SECRET, Geometries.of("m"), 1);
    private long nowNs;

    private void open(Side decoder) {
        decoder.dial(nowNs);
        prefiller.sessions.onLinkOpened(Wire.DIALLED_LINK, true, "there:1", nowNs);
        decoder.sessions.onLinkOpened(Wire.DIALLED_LINK, false, "host:7", nowNs);
    }

    /** Carries frames both ways until none is left. */
    private void carry(Side decoder) {
        while (!prefiller.wire.sent.isEmpty() || !decoder.wire.sent.isEmpty()) {
            prefiller.wire.take().forEach(f -> decoder.sessions.onFrame(Wire.DIALLED_LINK, f, nowNs));
            decoder.wire.take().forEach(f -> prefiller.sessions.onFrame(Wire.DIALLED_LINK, f, nowNs));
        }
    }

    private Side connected() {
        Side decoder = new Side("decoder-1", NO_SECRET, Geometries.of("m"), 2);
        open(decoder);
        carry(decoder);
        return decoder;
    }

    @Test
    void shouldBeReadyOnBothSidesAfterTheHandshake() {
        Side decoder = connected();

        assertThat(decoder.ready).isTrue();
        assertThat(prefiller.ready).isTrue();
    }

    @Test
    void shouldRefuseAnotherGeometryAndNameTheField() {
        Side decoder = new Side("decoder-1", NO_SECRET, Geometries.of("another"), 2);
        open(decoder);
        carry(decoder);

        assertThat(decoder.ended).singleElement().asString().contains("model", "another");
        assertThat(prefiller.ended).hasSize(1);
    }

    @Test
    void shouldRefuseAnInvalidGeometry() {
        Side decoder = new Side("decoder-1", NO_SECRET, Geometries.of("m"), 2);
        open(decoder);
        prefiller.wire.take().forEach(f -> decoder.sessions.onFrame(Wire.DIALLED_LINK, f, nowNs));
        Hello hello = decoder.wire.take().getLast().getHello();
        ControlFrame senseless = ControlFrame.newBuilder()
                .setHello(hello.toBuilder()
                        .setSubject(hello.getSubject().toBuilder().setDescription(senselessGeometry())))
                .build();
        prefiller.sessions.onFrame(Wire.DIALLED_LINK, senseless, nowNs);

        assertThat(prefiller.ended).singleElement().asString().contains("is invalid", "pageTokens");
    }

    private static ByteString senselessGeometry() {
        Geometry.Builder geometry = GeometryWire.encode(Geometries.of("m")).toBuilder();
        geometry.getGroupsBuilder(0).setPageTokens(-1);
        return geometry.build().toByteString();
    }

    @Test
    void shouldRefuseAnotherVersionOnEitherSide() {
        Side decoder = new Side("decoder-1", NO_SECRET, Geometries.of("m"), 2);
        open(decoder);
        decoder.sessions.onFrame(
                Wire.DIALLED_LINK,
                ControlFrame.newBuilder()
                        .setChallenge(Challenge.newBuilder().setProtocolVersion(99))
                        .build(),
                nowNs);
        prefiller.sessions.onFrame(
                Wire.DIALLED_LINK,
                ControlFrame.newBuilder()
                        .setHello(Hello.newBuilder().setProtocolVersion(99))
                        .build(),
                nowNs);

        assertThat(decoder.ended).singleElement().asString().contains("protocol_version is 99");
        assertThat(prefiller.ended).singleElement().asString().contains("protocol_version is 99");
    }

    @Test
    void shouldEndALinkThatSendsAGrantBeforeTheHandshakeIsOver() {
        Side decoder = new Side("decoder-1", NO_SECRET, Geometries.of("m"), 2);
        open(decoder);
        ControlFrame grant = ControlFrame.newBuilder()
                .setGrant(Grant.newBuilder().setTransferId("t").setGrantId(1))
                .build();
        prefiller.sessions.onFrame(Wire.DIALLED_LINK, grant, nowNs);

        assertThat(prefiller.frames).isEmpty();
        assertThat(prefiller.ended).singleElement().asString().contains("GRANT", "does not allow");
    }

    @Test
    void shouldEndALinkThatRepeatsItsHandshake() {
        Side decoder = connected();
        ControlFrame hello = ControlFrame.newBuilder()
                .setHello(Hello.newBuilder()
                        .setProtocolVersion(ProtocolLimits.PROTOCOL_VERSION)
                        .setNonce(ByteString.copyFrom(new byte[HandshakeProof.NONCE_LENGTH_BYTES])))
                .build();
        prefiller.sessions.onFrame(Wire.DIALLED_LINK, hello, nowNs);
        decoder.sessions.onFrame(Wire.DIALLED_LINK, ControlFrame.getDefaultInstance(), nowNs);

        assertThat(prefiller.ended).singleElement().asString().contains("HELLO");
        assertThat(decoder.ended).hasSize(1);
    }

    @Test
    void shouldEndAHandshakeThatTakesTooLong() {
        Side decoder = new Side("decoder-1", NO_SECRET, Geometries.of("m"), 2);
        open(decoder);
        nowNs += LIMITS.connectLimitNs();
        decoder.sessions.tick(nowNs);
        prefiller.sessions.tick(nowNs);

        assertThat(decoder.ended).singleElement().asString().contains("connect_limit_seconds");
        assertThat(prefiller.ended).singleElement().asString().contains("connect_limit_seconds");
    }

    @Test
    void shouldDeclareASilentPeerLostAndNotOneThatBeats() {
        Side decoder = connected();
        for (int i = 0; i < 10; i++) {
            nowNs += LIMITS.heartbeatNs();
            decoder.sessions.tick(nowNs);
            assertThat(decoder.sessions.nextDeadlineNs(nowNs)).isLessThanOrEqualTo(nowNs + LIMITS.heartbeatNs());
            decoder.sessions.onFrame(
                    Wire.DIALLED_LINK,
                    ControlFrame.newBuilder()
                            .setHeartbeat(Heartbeat.newBuilder().setSequence(i))
                            .build(),
                    nowNs);
        }
        assertThat(decoder.ended).isEmpty();
        assertThat(decoder.wire.sent).hasSize(10).allMatch(ControlFrame::hasHeartbeat);

        nowNs += LIMITS.silenceLimitNs();
        decoder.sessions.tick(nowNs);
        assertThat(decoder.ended).singleElement().asString().contains("silence_limit_seconds");
    }

    /** The cost of a duty cycle must not grow with the peers; what is due is done all the same, for each of them. */
    @Test
    void shouldLookAtNoSessionBeforeOneIsDue() {
        for (int link = 0; link < ProtocolLimits.DECODERS_MAX; link++) {
            attach(link);
        }
        prefiller.sessions.tick(nowNs);
        long visits = prefiller.sessions.visits();
        prefiller.wire.take();
        for (int cycle = 0; cycle < 1000; cycle++) {
            prefiller.sessions.tick(nowNs);
            prefiller.sessions.nextDeadlineNs(nowNs);
            prefiller.sessions.readyCount();
        }
        assertThat(prefiller.sessions.visits()).isEqualTo(visits);

        nowNs = prefiller.sessions.nextDeadlineNs(nowNs);
        prefiller.sessions.tick(nowNs);
        assertThat(prefiller.wire.take()).hasSize(ProtocolLimits.DECODERS_MAX).allMatch(ControlFrame::hasHeartbeat);
        assertThat(prefiller.sessions.readyCount()).isEqualTo(ProtocolLimits.DECODERS_MAX);

        nowNs += LIMITS.lostAfterNs();
        prefiller.sessions.tick(nowNs);
        assertThat(prefiller.ended).hasSize(ProtocolLimits.DECODERS_MAX).allMatch(why -> why.contains("was silent"));
        assertThat(prefiller.sessions.readyCount()).isZero();
    }

    @Test
    void shouldReportTheEndOfASessionOnce() {
        Side decoder = connected();
        decoder.sessions.end(decoder.session, "enough");
        decoder.sessions.end(decoder.session, "once more");
        decoder.sessions.onLinkClosed(Wire.DIALLED_LINK, "closed");

        assertThat(decoder.ended).containsExactly("enough");
    }

    @Test
    void shouldStayUntilThePeerHasReadTheGoodbye() {
        Side decoder = connected();
        decoder.sessions.sayGoodbye("shutting down");
        assertThat(decoder.ended).isEmpty();
        assertThat(decoder.wire.closed).isFalse();
        carry(decoder);
        assertThat(prefiller.ended).singleElement().asString().contains("goodbye", "shutting down");
        assertThat(prefiller.wire.closed).isTrue();

        decoder.sessions.onLinkClosed(Wire.DIALLED_LINK, "closed");
        assertThat(decoder.ended).containsExactly("closed");
        assertThat(decoder.sessions.count()).isZero();
    }

    @Test
    void shouldTakeNoLinkAfterTheGoodbye() {
        prefiller.sessions.sayGoodbye("shutting down");
        prefiller.sessions.onLinkOpened(7, true, "there:7", nowNs);
        assertThat(prefiller.wire.sent).singleElement().matches(ControlFrame::hasGoodbye);
        assertThat(prefiller.wire.closed).isTrue();
        assertThat(prefiller.sessions.count()).isZero();
    }

    @Test
    void shouldTrustALinkOnlyOnceItsPeerHasProvenItself() {
        Side decoder = new Side("decoder-1", NO_SECRET, Geometries.of("m"), 2);
        open(decoder);
        prefiller.wire.take().forEach(f -> decoder.sessions.onFrame(Wire.DIALLED_LINK, f, nowNs));
        assertThat(prefiller.wire.trusted || decoder.wire.trusted).isFalse();
        carry(decoder);
        assertThat(prefiller.wire.trusted && decoder.wire.trusted).isTrue();
    }

    @Test
    void shouldCloseTheOldestHandshakeWhenThereAreTooMany() {
        connected();
        for (int i = 0; i < ProtocolLimits.HANDSHAKES_MAX; i++) {
            prefiller.sessions.onLinkOpened(100 + i, true, "there:" + i, nowNs);
        }
        assertThat(prefiller.ended).isEmpty();

        prefiller.sessions.onLinkOpened(99, true, "there:99", nowNs);

        assertThat(prefiller.ended).singleElement().asString().contains("there:0 had not completed its handshake");
        assertThat(prefiller.sessions.readyCount()).isEqualTo(1);
    }

    @Test
    void shouldCloseNoHandshakeOfAHostForThoseOfAnother() {
        prefiller.sessions.onLinkOpened(50, true, "[fd00::1]:1", nowNs);
        prefiller.sessions.onLinkOpened(51, true, "elsewhere:1", nowNs);
        for (int i = 0; i < 4 * ProtocolLimits.HANDSHAKES_MAX; i++) {
            prefiller.sessions.onLinkOpened(100 + i, true, "there:" + i, nowNs);
        }

        assertThat(prefiller.ended)
                .hasSize(3 * ProtocolLimits.HANDSHAKES_MAX + 2)
                .allMatch(end -> end.toString().contains("there:"));
    }

    @Test
    void shouldServeSoManyDecodersAndNoMore() {
        for (int link = 0; link < ProtocolLimits.DECODERS_MAX; link++) {
            attach(link);
        }
        assertThat(prefiller.sessions.readyCount()).isEqualTo(ProtocolLimits.DECODERS_MAX);
        assertThat(prefiller.ended).isEmpty();

        prefiller.wire.take();
        hello(ProtocolLimits.DECODERS_MAX);
        assertThat(prefiller.wire.take()).singleElement().matches(ControlFrame::hasChallenge);
        assertThat(prefiller.ended).isEmpty();
    }

    private void attach(long link) {
        hello(link);
        Attach attach = Attach.newBuilder()
                .setAdmissionKey(ByteString.copyFrom(new byte[Admission.KEY_LENGTH_BYTES]))
                .build();
        prefiller.sessions.onFrame(
                link, ControlFrame.newBuilder().setAttach(attach).build(), nowNs);
    }

    private void hello(long link) {
        prefiller.sessions.onLinkOpened(link, true, "there:" + link, nowNs);
        Hello hello = Hello.newBuilder()
                .setProtocolVersion(ProtocolLimits.PROTOCOL_VERSION)
                .setNonce(ByteString.copyFrom(new byte[HandshakeProof.NONCE_LENGTH_BYTES]))
                .setSubject(HandshakeTest.subject(Geometries.of("m")))
                .build();
        prefiller.sessions.onFrame(
                link, ControlFrame.newBuilder().setHello(hello).build(), nowNs);
    }

    @Test
    void shouldCutAndFlattenWhatAPeerSaysBeforeAnybodySeesIt() {
        Side decoder = connected();
        String given = "one\ntwo" + "x".repeat(100_000);
        ControlFrame goodbye = ControlFrame.newBuilder()
                .setGoodbye(Goodbye.newBuilder().setSentence(given))
                .build();
        decoder.sessions.onFrame(Wire.DIALLED_LINK, goodbye, nowNs);

        assertThat(decoder.ended).singleElement().asString().contains("one two").hasSizeLessThan(2_000);
    }

    /** What the session cannot answer for ends it, whatever its subject is. */
    @Test
    void shouldEndALinkWhoseFrameBreaksARule() {
        connected();
        ControlFrame endless = ControlFrame.newBuilder()
                .setGrant(Grant.newBuilder()
                        .setTransferId("t".repeat(KvFrameRules.TRANSFER_ID_LENGTH_MAX + 1))
                        .setGrantId(1))
                .build();
        prefiller.sessions.onFrame(Wire.DIALLED_LINK, endless, nowNs);

        assertThat(prefiller.frames).isEmpty();
        assertThat(prefiller.ended).singleElement().asString().contains("a transfer_id of 513 characters");
    }

    @Test
    void shouldNotifyThePeerWhyItEndsASession() {
        Side decoder = connected();
        prefiller.sessions.end(prefiller.session, "the data paths to decoder-1 ended (UNREACHABLE): no route");
        carry(decoder);

        assertThat(decoder.ended)
                .singleElement()
                .asString()
                .contains("prefiller-1", "the data paths to decoder-1 ended (UNREACHABLE): no route");
        assertThat(prefiller.wire.sent).isEmpty();
    }

    @Test
    void shouldNoticeSilenceWhenItIsDueAndNotAtTheNextHeartbeat() {
        Side decoder = connected();
        long heardNs = nowNs;
        while (nowNs + LIMITS.heartbeatNs() < heardNs + LIMITS.lostAfterNs()) {
            nowNs += LIMITS.heartbeatNs();
            decoder.sessions.tick(nowNs);
        }
        assertThat(decoder.sessions.nextDeadlineNs(nowNs)).isEqualTo(heardNs + LIMITS.lostAfterNs());
        decoder.sessions.tick(heardNs + LIMITS.lostAfterNs() - 1);
        assertThat(decoder.ended).isEmpty();
        decoder.sessions.tick(heardNs + LIMITS.lostAfterNs());
        assertThat(decoder.ended).singleElement().asString().contains("silence_limit_seconds");
        assertThat(LIMITS.lostAfterNs()).isLessThan(LIMITS.silenceLimitNs());
    }
}
