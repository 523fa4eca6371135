package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.wire.Cancel;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Decline;
import io.kvmessenger.messenger.wire.Hello;
import io.kvmessenger.messenger.wire.Refusal;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Control links of unproven peers that are slow, silent, many, or that lie: each costs little, ends, and disturbs no other. */
@Timeout(900)
class HostileLinkTest {
    /** {@code -Dfuzz.links=10000}: links opened and dropped. */
    private static final int DROPPED_LINK_COUNT = Integer.getInteger("fuzz.links", 500);

    private static final int SLOW_LINK_COUNT = 32;
    private static final long BYTE_PERIOD_NS = 10_000_000;
    private static final int FLOOD_FRAME_COUNT = 50_000;
    private static final String SECRET = "a secret of this test";
    private static final Map<String, Object> QUICK_TO_LOSE_PATIENCE =
            Map.of("connectLimitMillis", 1_500, "sharedSecret", SECRET);
    private static final Map<String, Object> KNOWS_THE_SECRET = Map.of("sharedSecret", SECRET);

    /** What a decoder that knows the secret has said. */
    private static List<ControlFrame> proven;

    /** What a decoder of a pair without secret has said. */
    private static List<ControlFrame> free;

    @BeforeAll
    static void record() throws IOException {
        proven = recordHandshake(KNOWS_THE_SECRET);
        free = recordHandshake(Map.of());
    }

    private static List<ControlFrame> recordHandshake(Map<String, Object> options) throws IOException {
        try (EngineDouble p = new EngineDouble("prefiller", options, Map.of());
                RecordingProxy proxy = new RecordingProxy(p.opened.controlPort())) {
            try (EngineDouble d = new EngineDouble("decoder", options, Map.of())) {
                d.decline("t", proxy.port());
                d.awaitGauge("kv_messenger_sessions_open", 1);
                p.awaitGauge("kv_messenger_sessions_open", 1);
            }
            return List.copyOf(proxy.ofDecoder);
        }
    }

    private static SteadyPair pair() {
        return new SteadyPair(KNOWS_THE_SECRET, KNOWS_THE_SECRET);
    }

    private static SteadyPair quickToLosePatience() {
        return new SteadyPair(QUICK_TO_LOSE_PATIENCE, KNOWS_THE_SECRET);
    }

    @Test
    void shouldKeepOnlyTheNewestPendingLinksAndThoseNotForLong() {
        try (SteadyPair pair = quickToLosePatience()) {
            Footprint before = Footprint.now();
            List<ControlSocket> idle = new ArrayList<>();
            for (int i = 0; i < ProtocolLimits.HANDSHAKES_MAX + 8; i++) {
                idle.add(dialled(pair));
            }
            pair.prefiller.awaitCounter("kv_messenger_handshakes_dropped", 8);
            idle.forEach(ControlSocket::awaitEnd); // those that there was room for, when their time is over
            pair.prefiller.awaitCounter("kv_messenger_handshakes_dropped", ProtocolLimits.HANDSHAKES_MAX + 8);
            idle.forEach(ControlSocket::close);
            pair.assertUnharmed(before);
        }
    }

    @Test
    void shouldNotWaitForAHelloThatComesByteByByte() {
        try (SteadyPair pair = quickToLosePatience()) {
            Footprint before = Footprint.now();
            List<ControlSocket> slow = new ArrayList<>();
            for (int i = 0; i < SLOW_LINK_COUNT; i++) {
                slow.add(dialled(pair));
            }
            byte[] hello = ControlSocket.framed(proven.getFirst().toByteArray());
            for (int at = 0; at < hello.length - 1; at++) {
                for (ControlSocket link : slow) {
                    link.send(new byte[] {hello[at]});
                }
                LockSupport.parkNanos(BYTE_PERIOD_NS);
            }
            slow.forEach(ControlSocket::awaitEnd);
            slow.forEach(ControlSocket::close);
            pair.prefiller.awaitCounter("kv_messenger_handshakes_dropped", SLOW_LINK_COUNT);
            pair.assertUnharmed(before);
        }
    }

    @Test
    void shouldForgetLinksThatAreOpenedAndDropped() {
        try (SteadyPair pair = pair()) {
            Footprint before = Footprint.now();
            long beganNs = System.nanoTime();
            for (int i = 0; i < DROPPED_LINK_COUNT; i++) {
                ControlSocket link = ControlSocket.dial(pair.prefiller.opened.controlPort());
                if (i % 3 == 1) {
                    assertThat(link.read()).isPresent();
                } else if (i % 3 == 2) {
                    link.send(new byte[] {0, 0, 1});
                }
                link.close();
            }
            System.out.printf(
                    "%d links opened and dropped in %d s; %d transfers beside them%n",
                    DROPPED_LINK_COUNT, (System.nanoTime() - beganNs) / 1_000_000_000, pair.transferCount());
            pair.assertUnharmed(before);
        }
    }

    @Test
    void shouldCloseALinkThatAnnouncesMoreThanItMay() {
        try (SteadyPair pair = pair()) {
            Footprint before = Footprint.now();
            int[] lengths = {ProtocolLimits.HANDSHAKE_FRAME_LENGTH_MAX_BYTES + 1, Integer.MAX_VALUE, -1};
            for (int lengthBytes : lengths) {
                try (ControlSocket link = dialled(pair)) {
                    link.send(ByteBuffer.allocate(Integer.BYTES)
                            .putInt(lengthBytes)
                            .array());
                    link.awaitEnd();
                }
            }
            pair.prefiller.awaitCounter("kv_messenger_frames_invalid", lengths.length);
            pair.assertUnharmed(before);
        }
    }

    @Test
    void shouldEndALinkThatStopsInTheMiddleOfItsHello() {
        try (SteadyPair pair = quickToLosePatience();
                ControlSocket link = dialled(pair)) {
            byte[] hello = ControlSocket.framed(proven.getFirst().toByteArray());
            link.send(java.util.Arrays.copyOf(hello, hello.length / 2));
            link.awaitEnd();
            pair.prefiller.awaitCounter("kv_messenger_handshakes_dropped", 1);
        }
    }

    @Test
    void shouldRefuseAnotherVersionBeforeLookingAtAnythingElse() {
        try (SteadyPair pair = pair()) {
            Hello other = proven.getFirst().getHello().toBuilder()
                    .setProtocolVersion(ProtocolLimits.PROTOCOL_VERSION + 1)
                    .setNonce(ByteString.EMPTY)
                    .build();
            assertThat(answerTo(other, pair).getField()).isEqualTo("protocol_version");
        }
    }

    @Test
    void shouldRefuseAProofThatWasGoodOnAnotherLink() {
        try (SteadyPair pair = pair()) {
            assertThat(answerTo(proven.getFirst().getHello(), pair).getField()).isEqualTo("shared_secret");
        }
    }

    @Test
    void shouldNotTakeItsOwnWordsForAProof() {
        try (SteadyPair pair = pair();
                ControlSocket link = ControlSocket.dial(pair.prefiller.opened.controlPort())) {
            ByteString nonce = link.read().orElseThrow().getChallenge().getNonce();
            Hello echo = proven.getFirst().getHello().toBuilder()
                    .setNonce(nonce)
                    .setProof(nonce)
                    .build();
            link.send(ControlFrame.newBuilder().setHello(echo).build());
            assertThat(link.read().orElseThrow().getRefusal().getField()).isEqualTo("shared_secret");
            link.awaitEnd();
        }
    }

    @Test
    void shouldNotLetAPeerThatNeverStopsTalkingDisturbOthers() throws IOException {
        try (SteadyPair pair = new SteadyPair(Map.of(), Map.of());
                SilentListener data = new SilentListener();
                ControlSocket link = attached(pair, data)) {
            byte[] decline = ControlSocket.framed(ControlFrame.newBuilder()
                    .setDecline(Decline.newBuilder().setTransferId("never-computed"))
                    .build()
                    .toByteArray());
            byte[] many = repeated(decline, 1_000);
            int transfersBefore = pair.transferCount();
            for (int sent = 0; sent < FLOOD_FRAME_COUNT || pair.transferCount() == transfersBefore; sent += 1_000) {
                assertThat(link.send(many)).isTrue();
            }
            pair.stop();
        }
    }

    @Test
    void shouldCloseTheLinkOfAPeerThatAsksAndNeverReads() throws IOException {
        try (SteadyPair pair = new SteadyPair(Map.of(), Map.of());
                SilentListener data = new SilentListener()) {
            Footprint before = Footprint.now();
            try (ControlSocket link = attached(pair, data)) {
                byte[] cancel = ControlSocket.framed(ControlFrame.newBuilder()
                        .setCancel(Cancel.newBuilder()
                                .setTransferId("x".repeat(500))
                                .setGrantId(1))
                        .build()
                        .toByteArray());
                byte[] many = repeated(cancel, 100);
                long sentBytes = 0;
                while (link.send(many)) {
                    sentBytes += many.length;
                }
                // half: what waits is counted with its bookkeeping
                assertThat(sentBytes).isGreaterThan(NettyControlNetwork.UNSENT_BYTES_MAX / 2);
            }
            data.stop();
            pair.assertUnharmed(before);
        }
    }

    private static byte[] repeated(byte[] frame, int count) {
        ByteBuffer all = ByteBuffer.allocate(frame.length * count);
        for (int i = 0; i < count; i++) {
            all.put(frame);
        }
        return all.array();
    }

    /** A link whose Challenge has been read: the messenger knows it. */
    private static ControlSocket dialled(SteadyPair pair) {
        ControlSocket link = ControlSocket.dial(pair.prefiller.opened.controlPort());
        assertThat(link.read()).isPresent();
        return link;
    }

    /** A link that has been through the handshake; there is no secret. */
    private static ControlSocket attached(SteadyPair pair, SilentListener data) {
        ControlSocket link = dialled(pair);
        data.insteadOfDataSocketsIn(free.subList(0, 2)).forEach(link::send);
        assertThat(link.read().orElseThrow().hasWelcome()).isTrue();
        return link;
    }

    private static Refusal answerTo(Hello hello, SteadyPair pair) {
        try (ControlSocket link = dialled(pair)) {
            link.send(ControlFrame.newBuilder().setHello(hello).build());
            Optional<ControlFrame> answer = link.read();
            link.awaitEnd();
            return answer.orElseThrow().getRefusal();
        }
    }
}
