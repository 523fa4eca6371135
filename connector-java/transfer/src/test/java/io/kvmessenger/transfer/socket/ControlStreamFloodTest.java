package io.kvmessenger.transfer.socket;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.IoVector;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MessageHeader;
import io.kvmessenger.foreign.SocketApi;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.reflect.Proxy;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** A peer that sends faster than this side reads does not keep the worker from its other peers. */
final class ControlStreamFloodTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final int PREFIX_BYTES = 8;
    /** What any call may read at most: twice as much as a duty cycle takes from a data path. */
    private static final long READ_MAX_BYTES = 4 << 20;
    /** Where a call that would go on is given up. */
    private static final long ENDLESS_BYTES = 8 * READ_MAX_BYTES;

    private final EventLoop loop = new EventLoop(flooded(), () -> 0);
    private final String name = "kvmessenger-flood-" + ProcessHandle.current().pid();
    private final int listenFd = SOCKETS.listenAbstract(name);
    private int peerFd = SOCKETS.connectAbstract(name);
    private ControlStream stream;
    private int payloadBytes;
    private boolean refuses;
    private long readBytes;
    private long records;

    /** What reads bytes from the socket finds as many as it has room for, again and again. */
    private LibC flooded() {
        return (LibC) Proxy.newProxyInstance(
                LibC.class.getClassLoader(), new Class<?>[] {LibC.class}, (proxy, method, arguments) -> {
                    if (!method.getName().equals("recvmsg")) {
                        return method.invoke(LIB_C, arguments);
                    }
                    assertThat(readBytes).as("bytes read").isLessThan(ENDLESS_BYTES);
                    return fill((MemorySegment) arguments[1]);
                });
    }

    /** The next part of an endless sequence of records. */
    private long fill(MemorySegment message) {
        MemorySegment vector =
                ForeignMemory.at(message.get(ValueLayout.JAVA_LONG, MessageHeader.VECTORS_OFFSET), IoVector.SIZE_BYTES);
        MemorySegment room = ForeignMemory.at(IoVector.address(vector, 0), IoVector.lengthBytes(vector, 0));
        for (long i = 0; i < room.byteSize(); i++) {
            room.set(ValueLayout.JAVA_BYTE, i, byteAt((readBytes + i) % (PREFIX_BYTES + payloadBytes)));
        }
        message.set(ValueLayout.JAVA_LONG, MessageHeader.CONTROL_LENGTH_OFFSET, 0);
        readBytes += room.byteSize();
        return room.byteSize();
    }

    private byte byteAt(long at) {
        if (at == 0) {
            return (byte) ControlRecord.ALIVE;
        }
        return at >= 4 && at < PREFIX_BYTES ? (byte) (payloadBytes >> (8 * (int) (at - 4))) : 0;
    }

    private enum Call {
        /** The socket is reported as readable. */
        READY {
            @Override
            void on(ControlStreamFloodTest test) {
                test.loop.poll(0);
            }
        },
        /** The socket is reported as hung up, and what has arrived is read. */
        HANGING_UP {
            @Override
            void on(ControlStreamFloodTest test) {
                test.hangUp();
                test.loop.poll(0);
            }
        },
        DRAINING {
            @Override
            void on(ControlStreamFloodTest test) {
                test.stream.drain(0);
            }
        },
        /** After malformed input. */
        DISCARDING {
            @Override
            void on(ControlStreamFloodTest test) {
                test.stream.discard();
                test.loop.poll(0);
            }
        },
        /** After back pressure. */
        RESUMED {
            @Override
            void on(ControlStreamFloodTest test) {
                test.refuses = true;
                test.loop.poll(0);
                test.refuses = false;
                test.stream.resume(0);
                test.loop.poll(0);
            }
        };

        abstract void on(ControlStreamFloodTest test);
    }

    private record Case(Call call, int payloadBytes) {}

    static Stream<Case> cases() {
        return Stream.of(Call.values())
                .flatMap(call -> Stream.of(0, 1, 7, 8, 1000, 4088, 4096).map(bytes -> new Case(call, bytes)));
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
                        records += refuses ? 0 : 1;
                        return !refuses;
                    }

                    @Override
                    public void onEnd(String detail, boolean garbage) {
                        throw new AssertionError(detail);
                    }

                    @Override
                    public void onError(Throwable error) {
                        throw new AssertionError(error);
                    }
                },
                0);
    }

    private void hangUp() {
        LIB_C.close(peerFd);
        peerFd = -1;
    }

    @AfterEach
    void close() {
        stream.close();
        hangUp();
        LIB_C.close(listenFd);
        loop.close();
    }

    @ParameterizedTest
    @MethodSource("cases")
    void shouldReturnToOtherPeers(Case given) {
        payloadBytes = given.payloadBytes;
        open();
        write((byte) 1);
        given.call.on(this);
        assertThat(readBytes).as("bytes read").isBetween(1L, READ_MAX_BYTES);
        long before = readBytes;
        loop.poll(0);
        assertThat(readBytes).as("bytes read in a later call").isBetween(before + 1, before + READ_MAX_BYTES);
        if (given.call != Call.DISCARDING) {
            assertThat(records).as("records").isEqualTo(readBytes / (PREFIX_BYTES + payloadBytes));
        }
    }

    private void write(byte one) {
        try (Arena arena = Arena.ofConfined()) {
            LIB_C.write(peerFd, arena.allocateFrom(ValueLayout.JAVA_BYTE, one), 1);
        }
    }
}
