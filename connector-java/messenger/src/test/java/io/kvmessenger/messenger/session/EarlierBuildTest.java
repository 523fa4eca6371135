package io.kvmessenger.messenger.session;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.Wire;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.ProtocolVersions;
import io.kvmessenger.messenger.session.SessionsTest.Side;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.ControlFrame.BodyCase;
import io.kvmessenger.messenger.wire.Decline;
import io.kvmessenger.messenger.wire.FrameVersions;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Sides of two versions, and what earlier builds have said on a link, as {@link WireRecord} keeps it. */
class EarlierBuildTest {
    private static final long NOW_NS = 0;
    private static final String HANDSHAKE = "handshake.";

    private static Side side(String name, long incarnation, int oldest, int newest, String secret) {
        var versions = new ProtocolVersions(oldest, newest);
        byte[] key = secret.getBytes(StandardCharsets.UTF_8);
        return new Side(new MessengerIdentity(name, incarnation, key, versions), Geometries.of("m"));
    }

    private static Side ours(String name, long incarnation) {
        return side(name, incarnation, ProtocolLimits.PROTOCOL_VERSION_OLDEST, ProtocolLimits.PROTOCOL_VERSION, "");
    }

    /** Carries all frames; returns those of the handshake by their kind. */
    private static Map<String, ControlFrame> connect(Side prefiller, Side decoder) {
        Map<String, ControlFrame> given = new LinkedHashMap<>();
        decoder.dial(NOW_NS);
        prefiller.sessions.onLinkOpened(Wire.DIALLED_LINK, true, "there:1", NOW_NS);
        decoder.sessions.onLinkOpened(Wire.DIALLED_LINK, false, "host:7", NOW_NS);
        while (!prefiller.wire.sent.isEmpty() || !decoder.wire.sent.isEmpty()) {
            for (ControlFrame frame : prefiller.wire.take()) {
                given.put(nameOf(frame), frame);
                decoder.sessions.onFrame(Wire.DIALLED_LINK, frame, NOW_NS);
            }
            for (ControlFrame frame : decoder.wire.take()) {
                given.put(nameOf(frame), frame);
                prefiller.sessions.onFrame(Wire.DIALLED_LINK, frame, NOW_NS);
            }
        }
        return given;
    }

    private static String nameOf(ControlFrame frame) {
        return HANDSHAKE + frame.getBodyCase().name().toLowerCase(Locale.ROOT);
    }

    @ParameterizedTest
    @CsvSource({"10,11,10,11,11", "10,11,9,10,10", "9,10,10,11,10", "11,12,10,11,11", "10,10,10,12,10", "9,11,10,10,10"
    })
    void shouldAgreeUponTheNewestVersionOfBoth(int oldest, int newest, int itsOldest, int itsNewest, int agreed) {
        Side prefiller = side("prefiller-1", 1, oldest, newest, "secret");
        Side decoder = side("decoder-1", 2, itsOldest, itsNewest, "secret");
        connect(prefiller, decoder);

        for (Side one : new Side[] {prefiller, decoder}) {
            assertThat(one.ready).isTrue();
            assertThat(one.session.speaks(agreed)).isTrue();
            assertThat(one.session.speaks(agreed + 1)).isFalse();
        }
    }

    @ParameterizedTest
    @CsvSource({"10,11,12,13,12 to 13,10 to 11", "12,12,10,11,10 to 11,12", "11,12,10,10,10,11 to 12"})
    void shouldSayOnBothSidesThatNoVersionIsSpokenByBoth(
            int oldest, int newest, int itsOldest, int itsNewest, String its, String own) {
        Side prefiller = side("prefiller-1", 1, oldest, newest, "");
        Side decoder = side("decoder-1", 2, itsOldest, itsNewest, "");
        connect(prefiller, decoder);

        String remedy = ": install the same kv-connector on both sides, or two releases that follow each other";
        String sentence =
                "protocol_version is " + own + " at prefiller-1 at host:7 and " + its + " at decoder-1" + remedy;
        assertThat(decoder.ended).containsExactly(sentence);
        assertThat(prefiller.ended).singleElement().asString().endsWith(sentence);
        assertThat(prefiller.ready || decoder.ready).isFalse();
    }

    /** A kind of frame that the version agreed upon has not: neither sent nor taken. */
    @Test
    void shouldKeepFramesOfALaterVersionOutOfAnEarlierSession() {
        int since = FrameVersions.since(BodyCase.DECLINE);
        Side prefiller = side("prefiller-1", 1, since, since, "");
        connect(prefiller, side("decoder-1", 2, since, since, ""));
        ControlFrame.Builder decline =
                ControlFrame.newBuilder().setDecline(Decline.newBuilder().setTransferId("t"));
        prefiller.session.agreesUpon(since - 1);

        assertThatThrownBy(() -> prefiller.sessions.send(prefiller.session, decline))
                .isInstanceOf(AssertionError.class)
                .hasMessageContaining("decoder-1 at there:1 does not know DECLINE");
        prefiller.sessions.onFrame(Wire.DIALLED_LINK, decline.build(), NOW_NS);
        assertThat(prefiller.ended).singleElement().asString().contains("DECLINE where the protocol does not allow it");
    }

    /** An earlier build as a prefiller. */
    @ParameterizedTest
    @ValueSource(ints = {10})
    void shouldAttachToAPrefillerOfAnEarlierBuild(int version) {
        WireRecord record = WireRecord.of(version);
        Side decoder = ours("decoder-1", 2);
        decoder.dial(NOW_NS);
        decoder.sessions.onLinkOpened(Wire.DIALLED_LINK, false, "host:7", NOW_NS);
        decoder.sessions.onFrame(Wire.DIALLED_LINK, record.frame(HANDSHAKE + "challenge"), NOW_NS);
        assertThat(decoder.wire.take()).singleElement().satisfies(hello -> {
            assertThat(hello.getHello().getProtocolVersion())
                    .as("what it demands")
                    .isEqualTo(version);
            assertThat(hello.getHello().getSubject())
                    .isEqualTo(record.frame(HANDSHAKE + "hello").getHello().getSubject());
        });
        decoder.sessions.onFrame(Wire.DIALLED_LINK, record.frame(HANDSHAKE + "welcome"), NOW_NS);

        assertThat(decoder.ended).isEmpty();
        assertThat(decoder.ready).isTrue();
        assertThat(decoder.wire.take()).containsExactly(record.frame(HANDSHAKE + "attach"));
    }

    /** An earlier build as a decoder. */
    @ParameterizedTest
    @ValueSource(ints = {10, 11})
    void shouldWelcomeADecoderOfAnEarlierBuild(int version) {
        WireRecord record = WireRecord.of(version);
        Side prefiller = ours("prefiller-1", 1);
        prefiller.sessions.onLinkOpened(Wire.DIALLED_LINK, true, "there:1", NOW_NS);
        prefiller.sessions.onFrame(Wire.DIALLED_LINK, record.frame(HANDSHAKE + "hello"), NOW_NS);
        prefiller.sessions.onFrame(Wire.DIALLED_LINK, record.frame(HANDSHAKE + "attach"), NOW_NS);

        assertThat(prefiller.ended).isEmpty();
        assertThat(prefiller.ready).isTrue();
        assertThat(prefiller.wire.take()).last().isEqualTo(record.frame(HANDSHAKE + "welcome"));
    }

    /** What it sends means here what it meant there. */
    @ParameterizedTest
    @ValueSource(ints = {10, 11})
    void shouldReadEveryFrameOfAnEarlierBuild(int version) throws InvalidProtocolBufferException {
        WireRecord record = WireRecord.of(version);
        Descriptor frame = record.schema().findMessageTypeByName("ControlFrame");
        for (Map.Entry<String, byte[]> given : record.frames().entrySet()) {
            ControlFrame read = record.frame(given.getKey());
            DynamicMessage meant = DynamicMessage.parseFrom(frame, given.getValue());
            assertThat(EveryFrameTest.broken(read)).as(given.getKey()).isEmpty();
            assertThat(read.toString()).as(given.getKey()).isEqualTo(meant.toString());
            assertThat(read.toByteArray()).as(given.getKey()).isEqualTo(given.getValue());
        }
    }

    /** Its transcript of a handshake, and its seals, are over what it has read: that must be what was sent. */
    @ParameterizedTest
    @ValueSource(ints = {10, 11})
    void shouldSayNothingThatAnEarlierBuildWouldProveOtherwise(int version) throws InvalidProtocolBufferException {
        Descriptor frame = WireRecord.of(version).schema().findMessageTypeByName("ControlFrame");
        for (ControlFrame given : WireRecord.everyFrame().values()) {
            DynamicMessage read = DynamicMessage.parseFrom(frame, given.toByteArray());
            assertThat(read.toByteArray()).as(given.getBodyCase().name()).isEqualTo(given.toByteArray());
        }
        Side prefiller = side("prefiller-1", 1, version, version + 1, "secret");
        Map<String, ControlFrame> given = connect(prefiller, side("decoder-1", 2, version, version + 1, "secret"));
        assertThat(given.values())
                .extracting(ControlFrame::getBodyCase)
                .containsAll(Set.of(BodyCase.CHALLENGE, BodyCase.HELLO));
        for (ControlFrame one : given.values()) {
            DynamicMessage read = DynamicMessage.parseFrom(frame, one.toByteArray());
            assertThat(read.toByteArray()).isEqualTo(one.toByteArray());
        }
    }

    /** A field or a kind of frame is added, and never changed: reserved numbers stay reserved. */
    @ParameterizedTest
    @ValueSource(ints = {10, 11})
    void shouldOnlyHaveAddedToTheSchemaOfAnEarlierBuild(int version) {
        FileDescriptor now = ControlFrame.getDescriptor().getFile();
        WireRecord.of(version)
                .schema()
                .getMessageTypes()
                .forEach(before -> compare(before, now.findMessageTypeByName(before.getName())));
    }

    private static void compare(Descriptor before, Descriptor now) {
        assertThat(now).as(before.getFullName()).isNotNull();
        int last = before.getFields().stream()
                .mapToInt(FieldDescriptor::getNumber)
                .max()
                .orElse(0);
        for (FieldDescriptor field : now.getFields()) {
            FieldDescriptor was = before.findFieldByNumber(field.getNumber());
            if (was == null) {
                boolean alternative = field.getContainingOneof() != null;
                assertThat(alternative || field.getNumber() > last)
                        .as(field.getFullName() + " stands behind all others")
                        .isTrue();
                assertThat(before.isReservedNumber(field.getNumber()))
                        .as(field.getFullName())
                        .isFalse();
            } else {
                assertThat(field.toProto()).as(field.getFullName()).isEqualTo(was.toProto());
            }
        }
        before.getNestedTypes().forEach(nested -> compare(nested, now.findNestedTypeByName(nested.getName())));
    }

    /** A record of every version that is spoken is there, and this build's can be made. */
    @Test
    void shouldHaveARecordOfEveryVersionThatIsSpoken() {
        for (int version = ProtocolLimits.PROTOCOL_VERSION_OLDEST;
                version <= ProtocolLimits.PROTOCOL_VERSION;
                version++) {
            assertThat(WireRecord.of(version).frames()).as("version " + version).isNotEmpty();
        }
        Map<String, ControlFrame> given = connect(ours("prefiller-1", 1), ours("decoder-1", 2));
        given.putAll(WireRecord.everyFrame());
        WireRecord.write(Path.of("target", "earlier"), given);
        Set<String> recorded =
                WireRecord.of(ProtocolLimits.PROTOCOL_VERSION).frames().keySet();
        assertThat(given.keySet()).containsAll(recorded);
        assertThat(given.values()).allMatch(Objects::nonNull).allMatch(Message::isInitialized);
    }
}
