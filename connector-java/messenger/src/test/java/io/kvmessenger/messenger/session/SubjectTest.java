package io.kvmessenger.messenger.session;

import static org.assertj.core.api.Assertions.assertThat;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.Wire;
import io.kvmessenger.messenger.kv.KvSubject;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.SubjectDescription;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Sessions of something else than a KV cache: weights, which fit when their version is the same. */
class SubjectTest {
    private record PeerWeights(String version) implements PeerSubject {}

    private static final class Weights implements Subject {
        private final String version;
        final List<String> asked = new ArrayList<>();

        Weights(String version) {
            this.version = version;
        }

        @Override
        public String kind() {
            return "weights";
        }

        @Override
        public ByteString description() {
            return ByteString.copyFromUtf8(version);
        }

        @Override
        public Fit fit(ByteString peerDescription, String peerName, boolean peerReceives) {
            asked.add(peerName + (peerReceives ? " receives" : " sends"));
            String peer = peerDescription.toStringUtf8();
            return peer.equals(version)
                    ? new Fits(new PeerWeights(peer))
                    : new Differs("version", "version is " + peer + " at " + peerName + ", expected " + version);
        }
    }

    private final Weights weights = new Weights("v1");
    private final SessionsTest.Side prefiller = new SessionsTest.Side("prefiller-1", "", weights, 1);

    /** The handshake, as far as it goes. */
    private void connect(SessionsTest.Side decoder) {
        decoder.sessions.dial("host", 7, 0);
        prefiller.sessions.onLinkOpened(Wire.DIALLED_LINK, true, "there:1", 0);
        decoder.sessions.onLinkOpened(Wire.DIALLED_LINK, false, "host:7", 0);
        for (int i = 0; i < 3; i++) {
            prefiller.wire.take().forEach(frame -> decoder.sessions.onFrame(Wire.DIALLED_LINK, frame, 0));
            decoder.wire.take().forEach(frame -> prefiller.sessions.onFrame(Wire.DIALLED_LINK, frame, 0));
        }
    }

    @Test
    void shouldKeepWhatTheSubjectSaysOfThePeer() {
        Weights others = new Weights("v1");
        SessionsTest.Side decoder = new SessionsTest.Side("decoder-1", "", others, 2);
        connect(decoder);
        assertThat(prefiller.session.peerSubject()).isEqualTo(new PeerWeights("v1"));
        assertThat(decoder.session.peerSubject()).isEqualTo(new PeerWeights("v1"));
        assertThat(weights.asked).containsExactly("decoder-1 at there:1 receives");
        assertThat(others.asked).containsExactly("prefiller-1 at host:7 sends");
    }

    @Test
    void shouldRefuseWhatTheSubjectFindsDifferent() {
        SessionsTest.Side decoder = new SessionsTest.Side("decoder-1", "", new Weights("v2"), 2);
        connect(decoder);
        assertThat(prefiller.ready).isFalse();
        assertThat(prefiller.ended).containsExactly("version is v2 at decoder-1 at there:1, expected v1");
        assertThat(decoder.ended).singleElement().asString().contains("version is v2");
    }

    @Test
    void shouldRefuseAnotherSubjectWithoutLookingAtIt() {
        SessionsTest.Side decoder = new SessionsTest.Side("decoder-1", "", new KvSubject(Geometries.of("m")), 2);
        connect(decoder);
        assertThat(prefiller.ended)
                .containsExactly("subject is 'kv_cache' at decoder-1 at there:1 and 'weights' at prefiller-1: connect"
                        + " messengers that move the same");
        assertThat(decoder.ended).singleElement().asString().contains("subject is 'kv_cache'");
        assertThat(weights.asked).isEmpty();
    }

    /** As of a peer that names a kind of a later release, or none. */
    @Test
    void shouldRefuseASubjectThatItDoesNotKnow() {
        for (String kind : List.of("", "store")) {
            SessionsTest.Side kv = new SessionsTest.Side("prefiller-2", "", new KvSubject(Geometries.of("m")), 3);
            kv.sessions.onLinkOpened(Wire.DIALLED_LINK, true, "there:1", 0);
            ControlFrame.Builder hello = helloOf(new SessionsTest.Side("decoder-1", "", weights, 2), kv);
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
        decoder.sessions.dial("host", 7, 0);
        decoder.sessions.onLinkOpened(Wire.DIALLED_LINK, false, "host:7", 0);
        prefiller.wire.take().forEach(frame -> decoder.sessions.onFrame(Wire.DIALLED_LINK, frame, 0));
        return decoder.wire.take().getLast().toBuilder();
    }
}
