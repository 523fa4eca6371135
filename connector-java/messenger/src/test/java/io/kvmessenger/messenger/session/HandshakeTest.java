package io.kvmessenger.messenger.session;

import static org.assertj.core.api.Assertions.assertThat;

import com.google.protobuf.ByteString;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.Wire;
import io.kvmessenger.messenger.kv.KvDescription;
import io.kvmessenger.messenger.session.SessionsTest.Side;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Decline;
import io.kvmessenger.messenger.wire.GeometryWire;
import io.kvmessenger.messenger.wire.Hello;
import io.kvmessenger.messenger.wire.SubjectDescription;
import io.kvmessenger.messenger.wire.Welcome;
import io.kvmessenger.transfer.Admission;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** What a shared secret keeps out: those who do not know it, and those who stand between two that do. */
class HandshakeTest {
    private static final long NOW_NS = 0;
    private static final byte[] SECRET = "secret".getBytes(StandardCharsets.UTF_8);
    private static final byte[] NONCE = new byte[HandshakeProof.NONCE_LENGTH_BYTES];

    private final Side prefiller = new Side("prefiller-1", "secret", Geometries.of("m"), 1);
    private final Side decoder = new Side("decoder-1", "secret", Geometries.of("m"), 2);

    private static void toDecoder(Side decoder, ControlFrame frame) {
        decoder.sessions.onFrame(Wire.DIALLED_LINK, frame, NOW_NS);
    }

    private void toPrefiller(ControlFrame frame) {
        prefiller.sessions.onFrame(Wire.DIALLED_LINK, frame, NOW_NS);
    }

    private void open(Side decoder) {
        decoder.dial(NOW_NS);
        prefiller.sessions.onLinkOpened(Wire.DIALLED_LINK, true, "there:1", NOW_NS);
        decoder.sessions.onLinkOpened(Wire.DIALLED_LINK, false, "host:7", NOW_NS);
    }

    private void carry(Side decoder) {
        while (!prefiller.wire.sent.isEmpty() || !decoder.wire.sent.isEmpty()) {
            prefiller.wire.take().forEach(frame -> toDecoder(decoder, frame));
            decoder.wire.take().forEach(this::toPrefiller);
        }
    }

    private void connect() {
        open(decoder);
        carry(decoder);
        assertThat(prefiller.ready && decoder.ready).isTrue();
    }

    /** Opens a link and takes the decoder's Hello off it. */
    private ControlFrame helloOf(Side decoder) {
        open(decoder);
        prefiller.wire.take().forEach(frame -> toDecoder(decoder, frame));
        return decoder.wire.take().getFirst();
    }

    private void assertRefused(Side side) {
        assertThat(side.ready).isFalse();
        assertThat(side.ended).singleElement().asString().contains("shared_secret");
    }

    @Test
    void shouldRefuseAnotherSecretAndNameTheOption() {
        Side other = new Side("decoder-1", "other", Geometries.of("m"), 2);
        open(other);
        carry(other);

        assertThat(prefiller.ready || other.ready).isFalse();
        assertThat(prefiller.wire.closed).isTrue();
        assertThat(other.ended).singleElement().asString().contains("shared_secret", "decoder-1", "prefiller-1");
    }

    @Test
    void shouldRefuseADecoderWithoutASecret() {
        Side open = new Side("decoder-1", "", Geometries.of("m"), 2);
        open(open);
        carry(open);

        assertRefused(prefiller);
        assertThat(open.ready).isFalse();
    }

    @Test
    void shouldRefuseAnEmptyProof() {
        Hello hello = helloOf(decoder).getHello();
        toPrefiller(ControlFrame.newBuilder()
                .setHello(hello.toBuilder().clearProof())
                .build());

        assertRefused(prefiller);
    }

    @Test
    void shouldRefuseAPrefillerWithoutAProof() {
        helloOf(decoder);
        toDecoder(decoder, welcome(ByteString.EMPTY));

        assertRefused(decoder);
    }

    @Test
    void shouldRefuseAPrefillerThatSendsTheDecodersProofBack() {
        Hello hello = helloOf(decoder).getHello();
        toDecoder(decoder, welcome(hello.getProof()));

        assertRefused(decoder);
    }

    @Test
    void shouldRefuseAPrefillerThatRepeatsAnEarlierHandshake() {
        open(decoder);
        ControlFrame challenge = prefiller.wire.take().getFirst();
        toDecoder(decoder, challenge);
        toPrefiller(decoder.wire.take().getFirst());
        ControlFrame welcome = prefiller.wire.take().getFirst();
        toDecoder(decoder, welcome);
        assertThat(decoder.ready).isTrue();

        Side next = new Side("decoder-1", "secret", Geometries.of("m"), 3);
        next.dial(NOW_NS);
        next.sessions.onLinkOpened(Wire.DIALLED_LINK, false, "host:7", NOW_NS);
        toDecoder(next, challenge);
        toDecoder(next, welcome);

        assertRefused(next);
    }

    @Test
    void shouldRefuseADecoderThatRepeatsAnEarlierHandshake() {
        ControlFrame hello = helloOf(decoder);
        prefiller.sessions.onLinkOpened(9, true, "there:9", NOW_NS);
        prefiller.sessions.onFrame(9, hello, NOW_NS);

        assertRefused(prefiller);
    }

    @ParameterizedTest
    @MethodSource("changedHellos")
    void shouldRefuseAHelloThatWasChangedOnItsWay(UnaryOperator<Hello.Builder> change) {
        Hello hello = helloOf(decoder).getHello();
        toPrefiller(ControlFrame.newBuilder()
                .setHello(change.apply(hello.toBuilder()))
                .build());

        assertRefused(prefiller);
    }

    static List<UnaryOperator<Hello.Builder>> changedHellos() {
        return List.of(
                hello -> hello.setEngineId("decoder-2"),
                hello -> hello.setIncarnation(hello.getIncarnation() + 1),
                hello -> hello.setNonce(ByteString.copyFrom(NONCE)),
                hello -> hello.setSubject(subject(Geometries.of("another"))));
    }

    @Test
    void shouldRefuseAChallengeOrWelcomeThatWasChangedOnItsWay() {
        open(decoder);
        ControlFrame challenge = prefiller.wire.take().getFirst();
        toDecoder(
                decoder,
                challenge.toBuilder()
                        .setChallenge(challenge.getChallenge().toBuilder().setEngineId("prefiller-2"))
                        .build());
        toPrefiller(decoder.wire.take().getFirst());
        assertRefused(prefiller);
        assertThat(prefiller.wire.take()).singleElement().matches(ControlFrame::hasRefusal);

        Side other = new Side("decoder-2", "secret", Geometries.of("m"), 3);
        ControlFrame hello = helloOf(other);
        toPrefiller(hello);
        Welcome welcome = prefiller.wire.take().getFirst().getWelcome();
        toDecoder(
                other,
                ControlFrame.newBuilder()
                        .setWelcome(welcome.toBuilder().setSubject(subject(Geometries.of("another"))))
                        .build());
        assertRefused(other);
    }

    @Test
    void shouldTakeSealedFramesInBothDirections() {
        connect();
        for (int i = 0; i < 3; i++) {
            decoder.sessions.send(decoder.session, decline("t" + i));
            prefiller.sessions.send(prefiller.session, decline("u" + i));
            carry(decoder);
        }
        assertThat(prefiller.frames).hasSize(3);
        assertThat(decoder.frames).hasSize(3);
        assertThat(prefiller.ended).isEmpty();
    }

    @Test
    void shouldEndASessionByAFrameThatNoneOfItsSidesSent() {
        connect();
        toPrefiller(decline("t").build());

        assertThat(prefiller.frames).isEmpty();
        assertThat(prefiller.ended).singleElement().asString().contains("DECLINE without the seal");
    }

    @Test
    void shouldEndASessionByAFrameThatWasChanged() {
        connect();
        decoder.sessions.send(decoder.session, decline("mine"));
        ControlFrame sent = decoder.wire.take().getFirst();
        toPrefiller(sent.toBuilder()
                .setDecline(Decline.newBuilder().setTransferId("another"))
                .build());

        assertThat(prefiller.frames).isEmpty();
        assertThat(prefiller.ended).hasSize(1);
    }

    @Test
    void shouldEndASessionByAFrameThatIsRepeatedLeftOutOrSentBack() {
        connect();
        decoder.sessions.send(decoder.session, decline("t"));
        ControlFrame sent = decoder.wire.take().getFirst();
        toPrefiller(sent);
        assertThat(prefiller.frames).hasSize(1);
        toPrefiller(sent);
        assertThat(prefiller.frames).hasSize(1);
        assertThat(prefiller.ended).hasSize(1);

        decoder.sessions.send(decoder.session, decline("u"));
        toDecoder(decoder, decoder.wire.take().getFirst());
        assertThat(decoder.frames).isEmpty();
        assertThat(decoder.ended).hasSize(1);
    }

    @Test
    void shouldEndASessionByItsOwnFrameSentBackInTheTurnOfThePeers() {
        connect();
        prefiller.sessions.send(prefiller.session, decline("first")); // the decoder's own first was its attach
        carry(decoder);
        assertThat(decoder.frames).hasSize(1);
        decoder.sessions.send(decoder.session, decline("second"));
        toDecoder(decoder, decoder.wire.take().getFirst());

        assertThat(decoder.frames).hasSize(1);
        assertThat(decoder.ended).singleElement().asString().contains("DECLINE without the seal");
    }

    @Test
    void shouldEndASessionWhenAFrameIsMissing() {
        connect();
        decoder.sessions.send(decoder.session, decline("lost"));
        decoder.wire.take();
        decoder.sessions.send(decoder.session, decline("next"));
        carry(decoder);

        assertThat(prefiller.frames).isEmpty();
        assertThat(prefiller.ended).hasSize(1);
    }

    @Test
    void shouldNotShowTheAdmissionKeyToThoseWhoListen() {
        byte[] key = new byte[Admission.KEY_LENGTH_BYTES]; // what the test's side admits with
        ControlFrame hello = helloOf(decoder);
        toPrefiller(hello);
        prefiller.wire.take().forEach(frame -> toDecoder(decoder, frame));
        ControlFrame attach = decoder.wire.take().getFirst();
        assertThat(attach.getAttach().getAdmissionKey().toByteArray())
                .hasSize(key.length)
                .isNotEqualTo(key);
        toPrefiller(attach);

        assertThat(prefiller.attached.getAdmissionKey().toByteArray()).isEqualTo(key);
    }

    @Test
    void shouldDeriveAnotherKeyFromEveryInput() {
        byte[] other = NONCE.clone();
        other[0] = 1;
        byte[] key = SessionKeys.of(SECRET, NONCE, NONCE).keyFor("a");

        assertThat(SessionKeys.of(SECRET, NONCE, NONCE).keyFor("a")).isEqualTo(key);
        assertThat(List.of(
                        SessionKeys.of("secret2".getBytes(StandardCharsets.UTF_8), NONCE, NONCE)
                                .keyFor("a"),
                        SessionKeys.of(SECRET, other, NONCE).keyFor("a"),
                        SessionKeys.of(SECRET, NONCE, other).keyFor("a"),
                        SessionKeys.of(SECRET, NONCE, NONCE).keyFor("b")))
                .doesNotContain(key)
                .doesNotHaveDuplicates();
    }

    @Test
    void shouldProveEachSideWithAKeyOfItsOwn() {
        SessionKeys keys = SessionKeys.of(SECRET, NONCE, NONCE);

        assertThat(HandshakeProof.of(keys, "prefiller", NONCE)).isNotEqualTo(HandshakeProof.of(keys, "decoder", NONCE));
    }

    /** The numbers of RFC 5869, appendix A.1, of which a first block is what a key is. */
    @Test
    void shouldDeriveKeysAsTheStandardSays() {
        byte[] salt = HexFormat.of().parseHex("000102030405060708090a0b0c");
        byte[] secret = HexFormat.of().parseHex("0b".repeat(22));
        SessionKeys keys = SessionKeys.of(secret, Arrays.copyOf(salt, 5), Arrays.copyOfRange(salt, 5, 13));
        byte[] purpose = HexFormat.of().parseHex("f0f1f2f3f4f5f6f7f8f9");

        assertThat(HexFormat.of().formatHex(keys.keyFor(purpose)))
                .isEqualTo("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
    }

    static SubjectDescription subject(KvGeometry geometry) {
        return SubjectDescription.newBuilder()
                .setSubjectKind(KvDescription.KIND)
                .setDescription(GeometryWire.encode(geometry).toByteString())
                .build();
    }

    private static ControlFrame welcome(ByteString proof) {
        return ControlFrame.newBuilder()
                .setWelcome(Welcome.newBuilder().setProof(proof).setSubject(subject(Geometries.of("m"))))
                .build();
    }

    private static ControlFrame.Builder decline(String transferId) {
        return ControlFrame.newBuilder().setDecline(Decline.newBuilder().setTransferId(transferId));
    }
}
