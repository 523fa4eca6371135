package io.kvmessenger.messenger.session;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.Wire;
import io.kvmessenger.messenger.session.SessionsTest.Side;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.ControlFrame.BodyCase;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * A frame of the handshake is taken once. A second one on a live session could put another admission or another subject
 * under transfers that are on their way, so it ends the session.
 */
class RepeatedHandshakeTest {
    private static final long NOW_NS = 0;
    private static final List<BodyCase> IN_ORDER =
            List.of(BodyCase.CHALLENGE, BodyCase.HELLO, BodyCase.WELCOME, BodyCase.ATTACH);

    private final Side prefiller = new Side("prefiller-1", "", Geometries.of("m"), 1);
    private final Side decoder = new Side("decoder-1", "", Geometries.of("m"), 2);
    private final Map<BodyCase, ControlFrame> delivered = new EnumMap<>(BodyCase.class);

    static List<Arguments> repetitions() {
        List<Arguments> all = new ArrayList<>();
        for (int first = 0; first < IN_ORDER.size(); first++) {
            for (int last = first; last < IN_ORDER.size(); last++) {
                all.add(Arguments.of(IN_ORDER.get(first), IN_ORDER.get(last)));
            }
        }
        return all;
    }

    @ParameterizedTest
    @MethodSource("repetitions")
    void shouldEndTheSessionOfAPeerThatRepeatsAFrame(BodyCase repeated, BodyCase after) {
        decoder.dial(NOW_NS);
        prefiller.sessions.onLinkOpened(Wire.DIALLED_LINK, true, "there:1", NOW_NS);
        decoder.sessions.onLinkOpened(Wire.DIALLED_LINK, false, "host:7", NOW_NS);
        for (BodyCase next : IN_ORDER.subList(0, IN_ORDER.indexOf(after) + 1)) {
            deliver(senderOf(next).wire.take().getFirst(), next);
        }
        Side receiver = receiverOf(repeated);
        assertThat(receiver.ended).isEmpty();
        receiver.sessions.onFrame(Wire.DIALLED_LINK, delivered.get(repeated), NOW_NS);

        assertThat(receiver.ended)
                .singleElement()
                .asString()
                .containsIgnoringCase("sent " + repeated.name())
                .contains("where the protocol does not allow it");
        assertThat(receiver.wire.closed).isTrue();
        assertThat(receiver.sessions.readyCount()).isZero();
    }

    private void deliver(ControlFrame frame, BodyCase expected) {
        assertThat(frame.getBodyCase()).isEqualTo(expected);
        delivered.put(expected, frame);
        receiverOf(expected).sessions.onFrame(Wire.DIALLED_LINK, frame, NOW_NS);
    }

    private Side senderOf(BodyCase frame) {
        return frame == BodyCase.CHALLENGE || frame == BodyCase.WELCOME ? prefiller : decoder;
    }

    private Side receiverOf(BodyCase frame) {
        return senderOf(frame) == prefiller ? decoder : prefiller;
    }
}
