package io.kvmessenger.weights;

import static org.assertj.core.api.Assertions.assertThat;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.wire.Attach;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.TransportAddress;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.RegionDescriptor;
import java.util.stream.Stream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

class WeightsFramesTest {
    private static Attach.Builder attach(int keyLengthBytes, String ticket, long lengthBytes) {
        RegionDescriptor landing = new RegionDescriptor(1, lengthBytes, 1, true);
        return Attach.newBuilder()
                .setAdmissionKey(ByteString.copyFrom(new byte[keyLengthBytes]))
                .setSubject(WeightsFrames.target(ticket, "", landing));
    }

    private static Attach.Builder reachedBy(int count, String transport, String location) {
        Attach.Builder attach = attach(Admission.KEY_LENGTH_BYTES, "t", 1);
        for (int i = 0; i < count; i++) {
            attach.addTransports(
                    TransportAddress.newBuilder().setTransport(transport).setLocation(location));
        }
        return attach;
    }

    private static String broken(Attach.Builder attach) {
        return WeightsFrames.broken(ControlFrame.newBuilder().setAttach(attach).build());
    }

    private static Stream<Attach.Builder> sound() {
        return Stream.of(
                attach(Admission.KEY_LENGTH_BYTES, "", 1),
                attach(Admission.KEY_LENGTH_BYTES, "t".repeat(64), Long.MAX_VALUE),
                reachedBy(8, "t".repeat(32), "h".repeat(256)));
    }

    @ParameterizedTest
    @MethodSource("sound")
    void shouldTakeWhatIsAtItsLimits(Attach.Builder attach) {
        assertThat(broken(attach)).isEmpty();
    }

    private static Stream<Arguments> unsound() {
        return Stream.of(
                Arguments.of(attach(0, "t", 1), "an admission_key of 0 bytes, expected 16"),
                Arguments.of(attach(17, "t", 1), "an admission_key of 17 bytes, expected 16"),
                Arguments.of(attach(16, "t".repeat(65), 1), "a ticket of 65 characters, expected at most 64"),
                Arguments.of(attach(16, "a\nb", 1), "control characters in its ticket, expected one line of text"),
                Arguments.of(attach(16, "t", 0), "a landing of 0 bytes"),
                Arguments.of(attach(16, "t", -1), "a landing of -1 bytes"),
                Arguments.of(reachedBy(9, "tcp", "h:1"), "9 transports, expected at most 8"),
                Arguments.of(reachedBy(1, "t".repeat(33), "h:1"), "a transport of 33 characters, expected at most 32"),
                Arguments.of(
                        reachedBy(8, "t\u001b", "h:1"),
                        "control characters in its transport, expected one line of text"),
                Arguments.of(
                        reachedBy(1, "tcp", "h".repeat(257)), "a location of 257 characters, expected at most 256"),
                Arguments.of(
                        reachedBy(8, "tcp", "h:1\n"), "control characters in its location, expected one line of text"));
    }

    @ParameterizedTest
    @MethodSource("unsound")
    void shouldNameWhatGoesBeyondThem(Attach.Builder attach, String rule) {
        assertThat(broken(attach)).isEqualTo(rule);
    }
}
