package io.kvmessenger.messenger.session;

import static org.assertj.core.api.Assertions.assertThat;

import com.google.protobuf.ByteString;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Descriptors.FieldDescriptor.JavaType;
import com.google.protobuf.Message;
import io.kvmessenger.messenger.Geometries;
import io.kvmessenger.messenger.wire.ControlFrame;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** {@link FrameRules} of every text in every kind of frame, as control.proto has them: no field can be left out. */
class EveryFrameTest {
    /** Above every limit. */
    private static final int TOO_LONG = 4096;
    /** Cut where they are shown, by {@link PeerText}. */
    private static final Set<String> CUT_WHERE_SHOWN =
            Set.of("Refusal.field", "Refusal.sentence", "CannotDeliver.sentence", "Goodbye.sentence");
    /** Its owner looks at it, and a frame of the handshake is short. */
    private static final Set<String> OPAQUE =
            Set.of("SubjectDescription.description", "SubjectFrame.payload", "Attach.subject", "Shares.pages");

    private static final List<FieldDescriptor> KINDS =
            ControlFrame.getDescriptor().getOneofs().getFirst().getFields();

    static String broken(ControlFrame frame) {
        return FrameRules.broken(frame, new SessionsTest.Side("prefiller-1", "", Geometries.of("m"), 1));
    }

    @Test
    void shouldTakeASoundFrameOfEveryKind() {
        for (FieldDescriptor kind : KINDS) {
            assertThat(broken(WireRecord.sound(kind))).as(kind.getName()).isEmpty();
        }
    }

    @Test
    void shouldHoldEveryTextAndKeyToItsLength() {
        for (List<FieldDescriptor> text : texts()) {
            FieldDescriptor field = text.getLast();
            Object tooLong = field.getJavaType() == JavaType.STRING
                    ? "x".repeat(TOO_LONG)
                    : ByteString.copyFrom(new byte[TOO_LONG]);
            assertThat(brokenBy(text, tooLong)).as(name(text)).contains(field.getName() + " of " + TOO_LONG);
        }
    }

    @Test
    void shouldHoldEveryTextToOneLine() {
        for (List<FieldDescriptor> text : texts()) {
            if (text.getLast().getJavaType() == JavaType.STRING) {
                assertThat(brokenBy(text, "a\nb")).as(name(text)).contains("control characters in its ");
            }
        }
    }

    @Test
    void shouldTakeNoFrameOfATransferWithoutAName() {
        List<List<FieldDescriptor>> ids = texts().stream()
                .filter(text -> text.getLast().getName().equals("transfer_id"))
                .toList();
        assertThat(ids).isNotEmpty();
        for (List<FieldDescriptor> id : ids) {
            assertThat(brokenBy(id, "")).as(name(id)).isEqualTo("an empty transfer_id");
        }
    }

    /** The ways to all texts and keys that have a rule. */
    private static List<List<FieldDescriptor>> texts() {
        return KINDS.stream().flatMap(kind -> textsBelow(List.of(kind))).toList();
    }

    private static Stream<List<FieldDescriptor>> textsBelow(List<FieldDescriptor> path) {
        FieldDescriptor field = path.getLast();
        return switch (field.getJavaType()) {
            case MESSAGE ->
                field.getMessageType().getFields().stream().flatMap(below -> textsBelow(longer(path, below)));
            case STRING, BYTE_STRING ->
                CUT_WHERE_SHOWN.contains(owned(field)) || OPAQUE.contains(owned(field))
                        ? Stream.empty()
                        : Stream.of(path);
            default -> Stream.empty();
        };
    }

    private static List<FieldDescriptor> longer(List<FieldDescriptor> path, FieldDescriptor field) {
        List<FieldDescriptor> longer = new ArrayList<>(path);
        longer.add(field);
        return longer;
    }

    private static String owned(FieldDescriptor field) {
        return field.getContainingType().getName() + "." + field.getName();
    }

    private static String name(List<FieldDescriptor> path) {
        return path.stream().map(FieldDescriptor::getName).collect(Collectors.joining("."));
    }

    private static String brokenBy(List<FieldDescriptor> path, Object value) {
        return broken((ControlFrame) with(WireRecord.sound(path.getFirst()), path, value));
    }

    private static Message with(Message message, List<FieldDescriptor> path, Object value) {
        FieldDescriptor field = path.getFirst();
        Message.Builder changed = message.toBuilder();
        if (path.size() == 1) {
            changed.setField(field, value);
        } else if (field.isRepeated()) {
            Message child = (Message) message.getRepeatedField(field, 0);
            changed.setRepeatedField(field, 0, with(child, path.subList(1, path.size()), value));
        } else {
            Message child = (Message) message.getField(field);
            changed.setField(field, with(child, path.subList(1, path.size()), value));
        }
        return changed.build();
    }
}
