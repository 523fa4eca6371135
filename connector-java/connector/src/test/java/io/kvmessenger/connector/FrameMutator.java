package io.kvmessenger.connector;

import com.google.protobuf.ByteString;
import com.google.protobuf.Descriptors.EnumValueDescriptor;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Message;
import io.kvmessenger.messenger.wire.ControlFrame;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;

/** Spoils recorded frames: by field, knowing what they are made of, and by byte, knowing nothing. Seeded. */
final class FrameMutator {
    private static final int[] EXTREME_INTS = {0, 1, -1, 15, 16, 17, 64, Integer.MAX_VALUE, Integer.MIN_VALUE, 1 << 20};
    private static final long[] EXTREME_LONGS = {0, 1, -1, Long.MAX_VALUE, Long.MIN_VALUE, 1L << 32, 4096, 1L << 62};
    private static final int[] EXTREME_LENGTHS = {0, -1, Integer.MAX_VALUE, Integer.MIN_VALUE, 8 << 20, (8 << 20) + 1};
    private static final int TEXT_LENGTH_MAX = 70_000;
    private static final int NEW_FIELD_ODDS = 12;
    private static final int INVENTED_FIELDS_MAX = 40;
    private static final int REPEATED_COUNT_MAX = 3_000;

    /**
     * A spoilt frame with its length before it.
     *
     * @param framed whether the length is right, so that a frame behind it will be understood
     */
    record Mutated(byte[] bytes, boolean framed) {}

    private final SplittableRandom random;
    private final List<ControlFrame> recorded;

    FrameMutator(long seed, List<ControlFrame> recorded) {
        this.random = new SplittableRandom(seed);
        this.recorded = recorded;
    }

    int below(int bound) {
        return random.nextInt(bound);
    }

    ControlFrame any() {
        return recorded.get(below(recorded.size()));
    }

    Mutated mutate(ControlFrame frame) {
        byte[] body =
                below(4) == 0 ? frame.toByteArray() : withSpoiltField(frame).toByteArray();
        for (int i = below(4) == 0 ? 1 + below(8) : 0; i > 0; i--) {
            body = withSpoiltBytes(body);
        }
        byte[] bytes = ControlSocket.framed(body);
        if (below(16) > 0) {
            return new Mutated(bytes, true);
        }
        ByteBuffer.wrap(bytes).putInt(0, EXTREME_LENGTHS[below(EXTREME_LENGTHS.length)]);
        return new Mutated(bytes, false);
    }

    private Message withSpoiltField(Message message) {
        Message.Builder builder = message.toBuilder();
        List<FieldDescriptor> fields = new ArrayList<>(message.getAllFields().keySet());
        if (fields.isEmpty() || below(NEW_FIELD_ODDS) == 0) {
            fields = message.getDescriptorForType().getFields();
        }
        if (fields.isEmpty()) {
            return message;
        }
        FieldDescriptor field = fields.get(below(fields.size()));
        if (field.isRepeated()) {
            spoilRepeated(builder, field);
        } else if (field.getJavaType() == FieldDescriptor.JavaType.MESSAGE) {
            builder.setField(field, withSpoiltField((Message) message.getField(field)));
        } else if (below(8) == 0) {
            builder.clearField(field);
        } else {
            builder.setField(field, spoilt(field, message.getField(field)));
        }
        return builder.build();
    }

    private void spoilRepeated(Message.Builder builder, FieldDescriptor field) {
        int count = builder.getRepeatedFieldCount(field);
        switch (count == 0 ? 0 : below(5)) {
            case 0 -> {
                Object value = field.getJavaType() == FieldDescriptor.JavaType.MESSAGE
                        ? invented(builder.newBuilderForField(field).build())
                        : spoilt(field, null);
                builder.addRepeatedField(field, value);
            }
            case 1 -> {
                int at = below(count);
                Object value = builder.getRepeatedField(field, at);
                builder.setRepeatedField(
                        field, at, value instanceof Message inner ? withSpoiltField(inner) : spoilt(field, value));
            }
            case 2 -> builder.clearField(field);
            case 3 -> builder.setRepeatedField(field, below(count), builder.getRepeatedField(field, below(count)));
            default -> {
                Object value = builder.getRepeatedField(field, below(count));
                for (int i = below(20) == 0 ? REPEATED_COUNT_MAX : 1; i > 0; i--) {
                    builder.addRepeatedField(field, value);
                }
            }
        }
    }

    private Message invented(Message empty) {
        Message invented = empty;
        for (int i = below(INVENTED_FIELDS_MAX + 1); i > 0; i--) {
            invented = withSpoiltField(invented);
        }
        return invented;
    }

    private Object spoilt(FieldDescriptor field, Object value) {
        return switch (field.getJavaType()) {
            case INT -> below(3) == 0 ? random.nextInt() : EXTREME_INTS[below(EXTREME_INTS.length)];
            case LONG -> below(3) == 0 ? random.nextLong() : EXTREME_LONGS[below(EXTREME_LONGS.length)];
            case BOOLEAN -> below(2) == 0;
            case FLOAT -> Float.NaN;
            case DOUBLE -> Double.NaN;
            case STRING -> spoiltText(value);
            case BYTE_STRING -> ByteString.copyFrom(randomBytes(below(100)));
            case ENUM -> anyOf(field.getEnumType().getValues());
            case MESSAGE -> throw new AssertionError("messages are spoilt field by field");
        };
    }

    private Object spoiltText(Object value) {
        return switch (below(6)) {
            case 0 -> "";
            case 1 -> "x".repeat(below(TEXT_LENGTH_MAX));
            case 2 -> "\u0000\n\"\u2028\ud83d\ude00".repeat(1 + below(2000));
            case 3 -> value + "'";
            case 4 -> "fuzz-" + below(SteadyPair.FUZZED_TRANSFER_COUNT);
            default -> any().getGrant().getTransferId();
        };
    }

    private EnumValueDescriptor anyOf(List<EnumValueDescriptor> values) {
        return values.get(below(values.size()));
    }

    private byte[] withSpoiltBytes(byte[] body) {
        if (body.length == 0) {
            return randomBytes(1 + below(20));
        }
        int at = below(body.length);
        switch (below(5)) {
            case 0 -> {
                byte[] flipped = body.clone();
                flipped[at] ^= (byte) (1 << below(8));
                return flipped;
            }
            case 1 -> {
                return Arrays.copyOf(body, at);
            }
            case 2 -> {
                return joined(body, at, randomBytes(1 + below(20)), at);
            }
            case 3 -> {
                byte[] other = any().toByteArray();
                return joined(body, at, other, at);
            }
            default -> {
                return joined(body, at, new byte[0], Math.min(body.length, at + 1 + below(20)));
            }
        }
    }

    /** {@code [0, to)}, then the middle, then {@code [from, …)}. */
    private static byte[] joined(byte[] body, int to, byte[] middle, int from) {
        return ByteBuffer.allocate(to + middle.length + body.length - from)
                .put(body, 0, to)
                .put(middle)
                .put(body, from, body.length - from)
                .array();
    }

    private byte[] randomBytes(int count) {
        byte[] bytes = new byte[count];
        random.nextBytes(bytes);
        return bytes;
    }
}
