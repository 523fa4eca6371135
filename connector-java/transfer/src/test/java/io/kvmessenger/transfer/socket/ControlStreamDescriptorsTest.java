package io.kvmessenger.transfer.socket;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import io.kvmessenger.foreign.MessageHeader;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.TransferEngine;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Descriptors come with the first byte of their record, which a full buffer may cut off from the rest: the next read
 * brings the rest, and the next record with its own descriptors. Whatever the cut, each record has its own.
 */
final class ControlStreamDescriptorsTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final int PREFIX_BYTES = 8;
    private static final int PAYLOAD_BYTES = 16;
    private static final int KIND = 16;

    private final EventLoop loop = new EventLoop(scarceAtTimes(), () -> 0);
    private final String name =
            "kvmessenger-descriptors-" + ProcessHandle.current().pid();
    private final int listenFd = SOCKETS.listenAbstract(name);
    private final int peerFd = SOCKETS.connectAbstract(name);
    private final List<String> seen = new ArrayList<>();
    /** Whether the first descriptors find no room in this process. */
    private boolean scarce;

    private int receives;
    private ControlStream stream;

    /** As where this process has no descriptor left: the kernel drops those that come, and says so. */
    private LibC scarceAtTimes() {
        return (LibC) Proxy.newProxyInstance(
                LibC.class.getClassLoader(), new Class<?>[] {LibC.class}, (proxy, method, arguments) -> {
                    if (method.getName().equals("recvmsg") && receives++ == 0 && scarce) {
                        MessageHeader.control((MemorySegment) arguments[1], MemorySegment.NULL, 0);
                    }
                    return method.invoke(LIB_C, arguments);
                });
    }

    /**
     * Records, and where the buffer ends in the first of them that has descriptors.
     *
     * @param cutBytes of this record before the end of the buffer; none with 0
     * @param counts of each record's descriptors
     */
    private record Case(int cutBytes, boolean scarce, int... counts) {
        @Override
        public String toString() {
            return "cut at " + cutBytes + (scarce ? ", scarce, " : ", ")
                    + IntStream.of(counts).boxed().toList();
        }
    }

    static Stream<Case> cases() {
        return IntStream.range(0, PREFIX_BYTES + PAYLOAD_BYTES)
                .boxed()
                .flatMap(cut -> Stream.of(false, true)
                        .flatMap(scarce -> Stream.of(
                                new Case(cut, scarce, 1, 1),
                                new Case(cut, scarce, 1, 2),
                                new Case(cut, scarce, 2, 1),
                                new Case(cut, scarce, 2, 2),
                                new Case(cut, scarce, 2, 2, 2))))
                // With nothing before the end of the buffer there is no first read to be scarce in.
                .filter(each -> !each.scarce || each.cutBytes > 0);
    }

    private void open() {
        int fd = LIB_C.accept4(
                listenFd, MemorySegment.NULL, MemorySegment.NULL, SocketApi.SOCK_NONBLOCK | SocketApi.SOCK_CLOEXEC);
        stream = new ControlStream(
                loop,
                fd,
                new ControlStream.Reader() {
                    @Override
                    public boolean onRecord(int type, MemorySegment payload, long nowNs) {
                        if (ControlRecord.descriptorCount(type) > 0) {
                            seen.add(ControlRecord.number(type) + ": " + takeAll());
                        }
                        return true;
                    }

                    @Override
                    public void onEnd(String detail, boolean garbage) {
                        seen.add(detail);
                    }

                    @Override
                    public void onError(Throwable error) {
                        throw new AssertionError(error);
                    }
                },
                2);
    }

    /** The lengths of the files that came with a record, by which each is known. */
    private List<Long> takeAll() {
        List<Long> lengths = new ArrayList<>();
        for (int fd = stream.takeDescriptor(); fd >= 0; fd = stream.takeDescriptor()) {
            lengths.add(LIB_C.lseek(fd, 0, MemoryApi.SEEK_END));
            LIB_C.close(fd);
        }
        return lengths;
    }

    @AfterEach
    void close() {
        stream.close();
        LIB_C.close(peerFd);
        LIB_C.close(listenFd);
        loop.close();
    }

    @ParameterizedTest
    @MethodSource("cases")
    void shouldGiveEachRecordItsOwnDescriptors(Case given) {
        scarce = given.scarce;
        open();
        sendPlain(TransferEngine.MESSAGE_MAX_BYTES - given.cutBytes);
        List<String> expected = new ArrayList<>();
        for (int number = 0; number < given.counts.length; number++) {
            List<Long> lengths = new ArrayList<>();
            for (int i = 0; i < given.counts[number]; i++) {
                lengths.add(4096L * (2 * number + i + 1));
            }
            send(number, lengths);
            expected.add(number + ": " + (scarce && number == 0 ? List.of() : lengths));
        }
        for (int i = 0; i < 8; i++) {
            loop.poll(0);
        }
        assertThat(seen).isEqualTo(expected);
    }

    private static byte[] recordOf(int type, int payloadBytes) {
        return ByteBuffer.allocate(PREFIX_BYTES + payloadBytes)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putInt(type)
                .putInt(payloadBytes)
                .array();
    }

    private void sendPlain(int payloadBytes) {
        byte[] bytes = recordOf(ControlRecord.type(KIND, 0), payloadBytes);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment copy = arena.allocate(bytes.length).copyFrom(MemorySegment.ofArray(bytes));
            assertThat(LIB_C.write(peerFd, copy, bytes.length)).isEqualTo(bytes.length);
        }
    }

    private void send(int number, List<Long> lengths) {
        int[] files = lengths.stream()
                .mapToInt(lengthBytes -> ForeignMemory.createFile(LIB_C, "kvm-numbered", lengthBytes))
                .toArray();
        int type = ControlRecord.withDescriptors(ControlRecord.type(KIND, number), files.length);
        byte[] bytes = recordOf(type, PAYLOAD_BYTES);
        assertThat(Descriptors.send(peerFd, bytes, files)).isEqualTo(bytes.length);
        for (int file : files) {
            LIB_C.close(file);
        }
    }
}
