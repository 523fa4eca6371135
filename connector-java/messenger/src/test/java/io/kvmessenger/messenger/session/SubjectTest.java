package io.kvmessenger.messenger.session;

import static org.assertj.core.api.Assertions.assertThat;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.Wire;
import io.kvmessenger.messenger.port.Capacities;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Hello;
import io.kvmessenger.messenger.wire.SubjectDescription;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Sessions of something else than a KV cache: weights, which fit when their version is the same. */
class SubjectTest {
    /** A session with weights; notes with whom it was compared. */
    private static final class WeightsSession extends Session {
        private final SessionsTest.Side side;
        private final String version;
        private final List<String> compared;
        String peerVersion = "";

        WeightsSession(
                SessionsTest.Side side,
                String version,
                List<String> compared,
                long link,
                boolean inbound,
                String peerAddress) {
            super(link, inbound, peerAddress);
            this.side = side;
            this.version = version;
            this.compared = compared;
        }

        @Override
        protected Optional<Misfit> misfit(ByteString peerDescription) {
            compared.add(peerName() + (inbound ? " receives" : " sends"));
            peerVersion = peerDescription.toStringUtf8();
            return peerVersion.equals(version)
                    ? Optional.empty()
                    : Optional.of(new Misfit(
                            "version",
                            "version is " + peerVersion + " at " + peerName() + ", expected " + version,
                            MessengerMetric.GEOMETRIES_DIFFERENT));
        }

        @Override
        protected void onReady() {
            side.onReady(this);
        }

        @Override
        protected void onFrame(ControlFrame frame) {
            side.frames.add(frame);
        }

        @Override
        protected void onEnded(String reason) {
            side.ended.add(reason);
        }
    }

    private static SessionsTest.Side weights(String name, String version, List<String> compared, long seed) {
        return new SessionsTest.Side(
                new MessengerIdentity(name, seed, new byte[0]),
                "weights",
                ByteString.copyFromUtf8(version),
                (side, link, inbound, peerAddress) ->
                        new WeightsSession(side, version, compared, link, inbound, peerAddress));
    }

    /** With places for so many peers. */
    private static SessionsTest.Side listener(int places) {
        Capacities most = Capacities.PRODUCTION;
        ProtocolLimits limits = new ProtocolLimits(1000, 1000, 500, 100, 300)
                .with(new Capacities(
                        most.handshakesMax(),
                        places,
                        places,
                        most.expectedTransfersMax(),
                        most.grantsWaitingMax(),
                        most.grantBytesWaitingMax(),
                        most.grantBytesWaitingAllMax(),
                        most.endedTransfersMax(),
                        most.checksumsPerFrameMax()));
        return new SessionsTest.Side(
                new MessengerIdentity("listener", 1, new byte[0]),
                "weights",
                ByteString.copyFromUtf8("v1"),
                (side, link, inbound, peerAddress) ->
                        new WeightsSession(side, "v1", new ArrayList<>(), link, inbound, peerAddress),
                limits);
    }

    private static void dial(SessionsTest.Side listener, long link) {
        Hello.Builder hello = Hello.newBuilder()
                .setProtocolVersion(ProtocolLimits.PROTOCOL_VERSION)
                .setEngineId("sender-" + link)
                .setNonce(ByteString.copyFrom(new byte[HandshakeProof.NONCE_LENGTH_BYTES]))
                .setSubject(SubjectDescription.newBuilder()
                        .setSubjectKind("weights")
                        .setDescription(ByteString.copyFromUtf8("v1")));
        listener.sessions.onLinkOpened(link, true, "there:" + link, 0);
        listener.sessions.onFrame(
                link, ControlFrame.newBuilder().setHello(hello).build(), 0);
    }

    /** To wait for a place would be in vain, as no sender of weights is asked to leave. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2, 5})
    void shouldRefuseOneMoreAtOnceWhereNoPeerEverLeaves(int places) {
        SessionsTest.Side listener = listener(places);
        for (long link = 1; link <= places; link++) {
            dial(listener, link);
            assertThat(listener.wire.sent.getLast().hasWelcome()).isTrue();
        }
        for (long more = places + 1L; more <= places + 3; more++) {
            dial(listener, more);
            assertThat(listener.wire.sent.getLast().getRefusal().getSentence())
                    .contains("listener serves " + places)
                    .contains("already");
            assertThat(listener.sessions.count()).isEqualTo(places);
        }
        listener.sessions.onLinkClosed(1, "closed");
        dial(listener, 100);
        assertThat(listener.wire.sent.getLast().hasWelcome()).isTrue();
    }

    private static SessionsTest.Side kvCache(String name, long seed) {
        return new SessionsTest.Side(name, "", Geometries.of("m"), seed);
    }

    private final List<String> comparedHere = new ArrayList<>();
    private final SessionsTest.Side prefiller = weights("prefiller-1", "v1", comparedHere, 1);

    /** The handshake, as far as it goes. */
    private void connect(SessionsTest.Side decoder) {
        decoder.dial(0);
        prefiller.sessions.onLinkOpened(Wire.DIALLED_LINK, true, "there:1", 0);
        decoder.sessions.onLinkOpened(Wire.DIALLED_LINK, false, "host:7", 0);
        for (int i = 0; i < 3; i++) {
            prefiller.wire.take().forEach(frame -> decoder.sessions.onFrame(Wire.DIALLED_LINK, frame, 0));
            decoder.wire.take().forEach(frame -> prefiller.sessions.onFrame(Wire.DIALLED_LINK, frame, 0));
        }
    }

    @Test
    void shouldKeepWhatTheSubjectSaysOfThePeer() {
        List<String> comparedThere = new ArrayList<>();
        SessionsTest.Side decoder = weights("decoder-1", "v1", comparedThere, 2);
        connect(decoder);
        assertThat(((WeightsSession) prefiller.session).peerVersion).isEqualTo("v1");
        assertThat(((WeightsSession) decoder.session).peerVersion).isEqualTo("v1");
        assertThat(comparedHere).containsExactly("decoder-1 at there:1 receives");
        assertThat(comparedThere).containsExactly("prefiller-1 at host:7 sends");
    }

    @Test
    void shouldRefuseWhatTheSubjectFindsDifferent() {
        SessionsTest.Side decoder = weights("decoder-1", "v2", new ArrayList<>(), 2);
        connect(decoder);
        assertThat(prefiller.ready).isFalse();
        assertThat(prefiller.ended).containsExactly("version is v2 at decoder-1 at there:1, expected v1");
        assertThat(decoder.ended).singleElement().asString().contains("version is v2");
    }

    @Test
    void shouldRefuseAnotherSubjectWithoutLookingAtIt() {
        SessionsTest.Side decoder = kvCache("decoder-1", 2);
        connect(decoder);
        assertThat(prefiller.ended)
                .containsExactly("subject is 'kv_cache' at decoder-1 at there:1 and 'weights' at prefiller-1: connect"
                        + " messengers that move the same");
        assertThat(decoder.ended).singleElement().asString().contains("subject is 'kv_cache'");
        assertThat(comparedHere).isEmpty();
    }

    /** As of a peer that names a kind of a later release, or none. */
    @Test
    void shouldRefuseASubjectThatItDoesNotKnow() {
        for (String kind : List.of("", "store")) {
            SessionsTest.Side kv = kvCache("prefiller-2", 3);
            kv.sessions.onLinkOpened(Wire.DIALLED_LINK, true, "there:1", 0);
            ControlFrame.Builder hello = helloOf(weights("decoder-1", "v1", new ArrayList<>(), 2), kv);
            hello.getHelloBuilder()
                    .setSubject(SubjectDescription.newBuilder()
                            .setSubjectKind(kind)
                            .setDescription(ByteString.copyFromUtf8("?")));
            kv.sessions.onFrame(Wire.DIALLED_LINK, hello.build(), 0);
            assertThat(kv.ended)
                    .containsExactly("subject is '" + kind + "' at decoder-1 at there:1 and 'kv_cache' at prefiller-2:"
                            + " connect messengers that move the same");
        }
    }

    private static ControlFrame.Builder helloOf(SessionsTest.Side decoder, SessionsTest.Side prefiller) {
        decoder.dial(0);
        decoder.sessions.onLinkOpened(Wire.DIALLED_LINK, false, "host:7", 0);
        prefiller.wire.take().forEach(frame -> decoder.sessions.onFrame(Wire.DIALLED_LINK, frame, 0));
        return decoder.wire.take().getLast().toBuilder();
    }
}
