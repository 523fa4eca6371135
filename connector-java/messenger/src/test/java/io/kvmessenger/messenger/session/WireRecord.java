package io.kvmessenger.messenger.session;

import com.google.protobuf.ByteString;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.DescriptorValidationException;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.transfer.Admission;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * What a build says on the control link, as files that later builds are tested against: the schema of its frames, and frames
 * in hex, one a line behind its name.
 *
 * <p>{@link EarlierBuildTest} leaves this build's in {@code target/earlier}; when a version is released, they are copied to
 * {@code src/test/resources/earlier}. They are not written anew for a version that has been released.
 */
record WireRecord(FileDescriptor schema, Map<String, byte[]> frames) {
    private static final List<FieldDescriptor> KINDS =
            ControlFrame.getDescriptor().getOneofs().getFirst().getFields();

    /** One of every kind that this build knows, with all fields set. */
    static Map<String, ControlFrame> everyFrame() {
        Map<String, ControlFrame> frames = new LinkedHashMap<>();
        KINDS.forEach(kind -> frames.put(kind.getName(), sound(kind)));
        return frames;
    }

    static ControlFrame sound(FieldDescriptor kind) {
        ControlFrame.Builder frame = ControlFrame.newBuilder();
        return frame.setField(kind, sound(frame.newBuilderForField(kind))).build();
    }

    /** One of everything, each text short. */
    private static Message sound(Message.Builder message) {
        for (FieldDescriptor field : message.getDescriptorForType().getFields()) {
            Object value = switch (field.getJavaType()) {
                case MESSAGE -> sound(message.newBuilderForField(field));
                case STRING -> "x";
                case BYTE_STRING -> ByteString.copyFrom(new byte[soundLengthBytes(field)]);
                case INT -> field.getName().endsWith("_version") ? ProtocolLimits.PROTOCOL_VERSION : 1;
                case LONG -> 1L;
                default -> field.getDefaultValue();
            };
            if (field.isRepeated()) {
                message.addRepeatedField(field, value);
            } else {
                message.setField(field, value);
            }
        }
        return message.build();
    }

    private static int soundLengthBytes(FieldDescriptor field) {
        return switch (field.getName()) {
            case "nonce" -> HandshakeProof.NONCE_LENGTH_BYTES;
            case "admission_key" -> Admission.KEY_LENGTH_BYTES;
            default -> 0;
        };
    }

    static WireRecord of(int version) {
        try (InputStream schema = resource(version, "schema");
                InputStream frames = resource(version, "frames")) {
            FileDescriptor file = FileDescriptor.buildFrom(
                    FileDescriptorProto.parseFrom(schema.readAllBytes()), new FileDescriptor[0]);
            Map<String, byte[]> read = new LinkedHashMap<>();
            for (String line : new String(frames.readAllBytes(), StandardCharsets.UTF_8)
                    .lines()
                    .toList()) {
                int gap = line.indexOf(' ');
                read.put(line.substring(0, gap), HexFormat.of().parseHex(line.substring(gap + 1)));
            }
            return new WireRecord(file, read);
        } catch (IOException | DescriptorValidationException e) {
            throw new AssertionError("the record of version " + version + " cannot be read", e);
        }
    }

    private static InputStream resource(int version, String what) {
        String name = "/earlier/control-" + version + "." + what;
        InputStream found = WireRecord.class.getResourceAsStream(name);
        if (found == null) {
            throw new AssertionError("no " + name + ": of every version that is spoken there has to be a record");
        }
        return found;
    }

    /** As this build would be recorded. */
    static void write(Path folder, Map<String, ControlFrame> given) {
        String lines = given.entrySet().stream()
                .map(frame -> frame.getKey() + " "
                        + HexFormat.of().formatHex(frame.getValue().toByteArray()) + "\n")
                .collect(Collectors.joining());
        String name = "control-" + ProtocolLimits.PROTOCOL_VERSION;
        try {
            Files.createDirectories(folder);
            Files.writeString(folder.resolve(name + ".frames"), lines);
            Files.write(
                    folder.resolve(name + ".schema"),
                    ControlFrame.getDescriptor().getFile().toProto().toByteArray());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    ControlFrame frame(String name) {
        try {
            return ControlFrame.parseFrom(frames.get(name));
        } catch (InvalidProtocolBufferException e) {
            throw new AssertionError(name + " of the record cannot be parsed", e);
        }
    }
}
