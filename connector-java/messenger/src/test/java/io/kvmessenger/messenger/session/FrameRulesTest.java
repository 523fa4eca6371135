package io.kvmessenger.messenger.session;

import static org.assertj.core.api.Assertions.assertThat;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.kv.KvFrameRules;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.Cancel;
import io.kvmessenger.messenger.wire.Challenge;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Hello;
import io.kvmessenger.messenger.wire.TransportAddress;
import io.kvmessenger.transfer.Admission;
import org.junit.jupiter.api.Test;

class FrameRulesTest {
    private static final ByteString NONCE = ByteString.copyFrom(new byte[HandshakeProof.NONCE_LENGTH_BYTES]);

    private static String broken(ControlFrame frame) {
        return FrameRules.broken(frame, new SessionsTest.Side("prefiller-1", "", Geometries.of("m"), 1));
    }

    private static String challenge(int version, String engineId, ByteString nonce) {
        return broken(ControlFrame.newBuilder()
                .setChallenge(Challenge.newBuilder()
                        .setProtocolVersion(version)
                        .setEngineId(engineId)
                        .setNonce(nonce))
                .build());
    }

    private static String attach(int keyLengthBytes, String transport, String location) {
        return broken(ControlFrame.newBuilder()
                .setAttach(Attach.newBuilder()
                        .setAdmissionKey(ByteString.copyFrom(new byte[keyLengthBytes]))
                        .addTransports(TransportAddress.newBuilder()
                                .setTransport(transport)
                                .setLocation(location)))
                .build());
    }

    private static String cancel(String transferId) {
        return broken(ControlFrame.newBuilder()
                .setCancel(Cancel.newBuilder().setTransferId(transferId).setGrantId(1))
                .build());
    }

    @Test
    void shouldTakeWhatIsShortAndOneLine() {
        assertThat(challenge(ProtocolLimits.PROTOCOL_VERSION, "prefiller-1", NONCE))
                .isEmpty();
        assertThat(attach(Admission.KEY_LENGTH_BYTES, "tcp", "10.0.0.1:4")).isEmpty();
        assertThat(cancel("é".repeat(KvFrameRules.TRANSFER_ID_LENGTH_MAX))).isEmpty();
    }

    @Test
    void shouldNameTheFieldThatIsTooLongOrHasAnotherLength() {
        int ours = ProtocolLimits.PROTOCOL_VERSION;
        assertThat(challenge(ours, "e".repeat(257), NONCE)).contains("engine_id of 257 characters");
        assertThat(challenge(ours, "e", ByteString.EMPTY)).contains("nonce of 0 bytes, expected 32");
        assertThat(attach(15, "tcp", "h:1")).contains("admission_key of 15 bytes, expected 16");
        assertThat(attach(Admission.KEY_LENGTH_BYTES, "t".repeat(33), "h:1")).contains("transport of 33 characters");
        assertThat(attach(Admission.KEY_LENGTH_BYTES, "tcp", "h".repeat(257))).contains("location of 257 characters");
        assertThat(cancel("")).contains("empty transfer_id");
        assertThat(broken(ControlFrame.newBuilder()
                        .setHello(Hello.newBuilder()
                                .setProtocolVersion(ours)
                                .setNonce(NONCE)
                                .setProof(ByteString.copyFrom(new byte[65])))
                        .build()))
                .contains("proof of 65 bytes");
    }

    @Test
    void shouldNotTakeIdsThatWouldBreakALogLine() {
        assertThat(cancel("a\nb")).contains("control characters in its transfer_id");
    }

    @Test
    void shouldLeaveAnotherVersionToTheHandshake() {
        assertThat(challenge(ProtocolLimits.PROTOCOL_VERSION + 1, "e", ByteString.EMPTY))
                .isEmpty();
    }

    @Test
    void shouldTakeFewContextRowsWithShortNames() {
        assertThat(context(1, "state")).isEmpty();
        assertThat(context(KvFrameRules.CONTEXT_ROWS_MAX + 1, "state"))
                .contains("17 context rows, expected at most 16");
        assertThat(context(1, "s".repeat(65))).contains("context row name of 65 characters");
    }

    private static String context(int rowCount, String name) {
        Attach.Builder attach =
                Attach.newBuilder().setAdmissionKey(ByteString.copyFrom(new byte[Admission.KEY_LENGTH_BYTES]));
        for (int i = 0; i < rowCount; i++) {
            attach.addContext(Attach.ContextRow.newBuilder().setName(name));
        }
        return broken(ControlFrame.newBuilder().setAttach(attach).build());
    }
}
