package io.kvmessenger.transfer.socket;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.IoVector;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MessageHeader;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.reflect.Proxy;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.List;
import java.util.Random;
import java.util.SplittableRandom;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Two ends of a sealed socket, and what lies between them. */
class SealingLibCTest {
    private static final int WRITER = 5;
    private static final int TARGET = 6;
    private static final int OTHER_WRITER = 70;
    private static final byte[] KEY = new byte[16];

    /** What each descriptor has sent and the other end has not read. */
    private final Deque<Byte> wire = new ArrayDeque<>();
    /** What the kernel takes of one send; zero: nothing for now. */
    private int room = Integer.MAX_VALUE;

    private final Arena arena = Arena.ofConfined();
    private final SealingLibC libC = new SealingLibC(
            (LibC) Proxy.newProxyInstance(
                    LibC.class.getClassLoader(),
                    new Class<?>[] {LibC.class},
                    (proxy, method, arguments) -> switch (method.getName()) {
                        case "send" -> send((MemorySegment) arguments[1], (long) arguments[2]);
                        case "read" -> read((MemorySegment) arguments[1], (long) arguments[2]);
                        case "close" -> 0;
                        default -> throw new AssertionError(method);
                    }),
            new SplittableRandom(7));

    private final Challenge asked = new Challenge(
            Hello.OLDEST_VERSION,
            version(),
            Challenge.fresh(new SplittableRandom(1)).nonce());
    private final Hello given = hello();

    SealingLibCTest() {
        libC.onDialled(WRITER, asked, given, KEY);
        libC.onAccepted(TARGET, asked, given, KEY);
    }

    /** The version that both ends speak. */
    int version() {
        return Hello.VERSION;
    }

    private Hello hello() {
        return Hello.answer(asked, "127.0.0.1:7/sealed", 1, 0, KEY, libC.freshNonce());
    }

    /** Length of what the writer sends in clear in front of its records. */
    private int preludeBytes() {
        return given.nonce().length == 0 ? SealingLibC.NONCE_LENGTH_BYTES : 0;
    }

    @AfterEach
    void close() {
        libC.close(WRITER);
        libC.close(TARGET);
        arena.close();
    }

    private long send(MemorySegment bytes, long lengthBytes) {
        if (room == 0) {
            return -Errno.EAGAIN;
        }
        int count = (int) Math.min(lengthBytes, room);
        room -= count;
        for (byte each : bytes.asSlice(0, count).toArray(ValueLayout.JAVA_BYTE)) {
            wire.add(each);
        }
        return count;
    }

    private long read(MemorySegment into, long lengthBytes) {
        if (wire.isEmpty()) {
            return -Errno.EAGAIN;
        }
        long count = Math.min(lengthBytes, wire.size());
        for (int i = 0; i < count; i++) {
            into.set(ValueLayout.JAVA_BYTE, i, wire.remove());
        }
        return count;
    }

    private long sendmsg(int fd, MemorySegment bytes) {
        MemorySegment vectors = arena.allocate(IoVector.SIZE_BYTES, 8);
        IoVector.set(vectors, 0, bytes.address(), bytes.byteSize());
        MemorySegment header = arena.allocate(MessageHeader.SIZE_BYTES, 8);
        MessageHeader.vectors(header, vectors, 1);
        return libC.sendmsg(fd, header, 0);
    }

    private MemorySegment drawn(int seed, int lengthBytes) {
        byte[] bytes = new byte[lengthBytes];
        new Random(seed).nextBytes(bytes);
        MemorySegment memory = arena.allocate(lengthBytes, 8);
        MemorySegment.copy(bytes, 0, memory, ValueLayout.JAVA_BYTE, 0, lengthBytes);
        return memory;
    }

    /** What the wire holds as records, without the writer's nonce. */
    private List<List<Byte>> takeRecords() {
        for (int i = 0; i < preludeBytes(); i++) {
            wire.remove();
        }
        return recordsOnWire();
    }

    private List<List<Byte>> recordsOnWire() {
        List<List<Byte>> records = new ArrayList<>();
        while (!wire.isEmpty()) {
            List<Byte> record = new ArrayList<>();
            int lengthBytes = 0;
            for (int i = 0; i < SealedStream.PREFIX_BYTES; i++) {
                record.add(wire.remove());
                lengthBytes |= (record.getLast() & 0xFF) << (8 * i);
            }
            for (int i = 0; i < lengthBytes; i++) {
                record.add(wire.remove());
            }
            records.add(record);
        }
        return records;
    }

    @Test
    void shouldGiveWhatWasSentHoweverLittleTheKernelTakesAtOnce() {
        MemorySegment bytes = drawn(1, 3 * SealedStream.RECORD_MAX_BYTES + 11);
        MemorySegment got = arena.allocate(bytes.byteSize());
        long sent = 0;
        long read = 0;
        while (read < bytes.byteSize()) {
            room = 1_000;
            if (sent < bytes.byteSize()) {
                sent += Math.max(0, sendmsg(WRITER, bytes.asSlice(sent)));
            }
            read += Math.max(0, libC.read(TARGET, got.asSlice(read), 777));
        }
        assertThat(sent).isEqualTo(bytes.byteSize());
        assertThat(got.mismatch(bytes)).isEqualTo(-1);
        assertThat(libC.holdsBytes(TARGET)).isFalse();
        assertThat(libC.read(TARGET, got, 1)).isEqualTo(-Errno.EAGAIN);
    }

    @Test
    void shouldSayThatItHoldsWhatNoReadHasAskedFor() {
        sendmsg(WRITER, drawn(1, 100));
        MemorySegment got = arena.allocate(100);
        assertThat(libC.read(TARGET, got, 40)).isEqualTo(40);
        assertThat(libC.holdsBytes(TARGET)).isTrue();
        assertThat(libC.read(TARGET, got, 100)).isEqualTo(60);
        assertThat(libC.holdsBytes(TARGET)).isFalse();
    }

    @ParameterizedTest
    @ValueSource(strings = {"changed", "left out", "repeated", "swapped", "longer", "cut"})
    void shouldGiveNothingOfARecordThatIsNotTheNextOneSealed(String attack) {
        sendmsg(WRITER, drawn(1, 200));
        List<Byte> nonce = List.copyOf(wire).subList(0, preludeBytes());
        sendmsg(WRITER, drawn(2, 200));
        List<List<Byte>> records = takeRecords();
        switch (attack) {
            case "changed" ->
                records.getFirst().set(50, (byte) (records.getFirst().get(50) ^ 1));
            case "left out" -> records.removeFirst();
            case "repeated" -> records.set(1, records.getFirst());
            case "swapped" -> Collections.swap(records, 0, 1);
            case "longer" ->
                records.getFirst().set(1, (byte) (records.getFirst().get(1) ^ 1));
            case "cut" -> records.getFirst().set(0, (byte) (records.getFirst().getFirst() - 1));
            default -> throw new AssertionError(attack);
        }
        wire.addAll(nonce);
        records.forEach(wire::addAll);
        MemorySegment got = arena.allocate(400);
        if (attack.equals("repeated")) {
            assertThat(libC.read(TARGET, got, 400)).isEqualTo(200);
        }
        assertThat(libC.read(TARGET, got, 400)).isEqualTo(attack.equals("longer") ? -Errno.EAGAIN : -Errno.EBADMSG);
        for (int i = 0; attack.equals("longer") && i < 400; i++) {
            wire.add((byte) 0);
        }
        assertThat(libC.read(TARGET, got, 400)).as("for good").isEqualTo(-Errno.EBADMSG);
        assertThat(libC.holdsBytes(TARGET)).isFalse();
    }

    /** As a target would ask that wants the same key used twice. */
    @Test
    void shouldUseAnotherKeyWhenATargetAsksTheSameAgain() {
        sendmsg(WRITER, drawn(1, 100));
        List<List<Byte>> first = takeRecords();
        libC.onDialled(OTHER_WRITER, asked, hello(), KEY);
        sendmsg(OTHER_WRITER, drawn(1, 100));
        assertThat(takeRecords()).hasSize(1).isNotEqualTo(first);
        libC.close(OTHER_WRITER);
    }

    /** A relay repeats the target's challenge to a second dial of the writer, and then what the target sent on the first. */
    @Test
    void shouldTakeNoTargetsRecordOfAnotherSocketWhoseChallengeWasTheSame() {
        sendmsg(TARGET, drawn(1, 100));
        List<List<Byte>> recorded = recordsOnWire();
        libC.onDialled(OTHER_WRITER, asked, hello(), KEY);
        recorded.forEach(wire::addAll);
        MemorySegment got = arena.allocate(100);
        assertThat(libC.read(OTHER_WRITER, got, 100)).isEqualTo(replayed());
        libC.close(OTHER_WRITER);
        recorded.forEach(wire::addAll);
        assertThat(libC.read(WRITER, got, 100)).as("the writer that it was for").isEqualTo(100);
    }

    /** What a replayed record of the target gives. */
    long replayed() {
        return -Errno.EBADMSG;
    }

    @Test
    void shouldPassOnWhatIsNotSealed() {
        libC.close(WRITER);
        MemorySegment bytes = drawn(1, 30);
        room = Integer.MAX_VALUE;
        libC.send(WRITER, bytes, 30, 0);
        MemorySegment got = arena.allocate(30);
        assertThat(libC.read(WRITER, got, 30)).isEqualTo(30);
        assertThat(got.mismatch(bytes)).isEqualTo(-1);
    }
}
