package io.kvmessenger.transfer.socket;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

final class ControlStreamTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    /** Half a prefix, so that no record is complete and nothing is taken. */
    private static final byte[] HALF_A_PREFIX = {1, 0, 0, 0};

    private final EventLoop loop = new EventLoop(countingReceives(), () -> 0);
    private final String name = "kvmessenger-stream-" + ProcessHandle.current().pid();
    private final int listenFd = SOCKETS.listenAbstract(name);
    private final int peerFd = SOCKETS.connectAbstract(name);
    private final int gift = Descriptors.gift();
    private final List<String> ends = new ArrayList<>();
    private ControlStream stream;
    private int receives;
    private int records;

    private LibC countingReceives() {
        return (LibC) Proxy.newProxyInstance(
                LibC.class.getClassLoader(), new Class<?>[] {LibC.class}, (proxy, method, arguments) -> {
                    receives += method.getName().equals("recvmsg") ? 1 : 0;
                    return method.invoke(LIB_C, arguments);
                });
    }

    private void open(int descriptorsMax) {
        int fd = LIB_C.accept4(
                listenFd, MemorySegment.NULL, MemorySegment.NULL, SocketApi.SOCK_NONBLOCK | SocketApi.SOCK_CLOEXEC);
        stream = new ControlStream(
                loop,
                fd,
                new ControlStream.Reader() {
                    @Override
                    public boolean onRecord(int type, MemorySegment payload, long nowNs) {
                        records++;
                        return true;
                    }

                    @Override
                    public void onEnd(String detail, boolean garbage) {
                        ends.add(detail + " " + garbage);
                    }

                    @Override
                    public void onError(Throwable error) {
                        throw new AssertionError(error);
                    }
                },
                descriptorsMax);
    }

    @AfterEach
    void close() {
        stream.close();
        LIB_C.close(gift);
        LIB_C.close(peerFd);
        LIB_C.close(listenFd);
        loop.close();
    }

    @Test
    void shouldTakeNoDescriptorWhereNoneIsExpected() throws IOException {
        open(0);
        Descriptors.send(peerFd, HALF_A_PREFIX, gift, gift);
        loop.poll(0);
        assertThat(Descriptors.gifts()).isEqualTo(1);
        assertThat(ends).containsExactly("the peer sent descriptors that were not asked for true");
        assertThat(stream.takeDescriptor()).isEqualTo(ControlStream.NO_DESCRIPTOR);
    }

    @Test
    void shouldKeepNoMoreDescriptorsThanItMayBeSent() throws IOException {
        open(2);
        Descriptors.send(peerFd, HALF_A_PREFIX, gift, gift);
        loop.poll(0);
        assertThat(Descriptors.gifts()).isEqualTo(3);
        assertThat(ends).isEmpty();
        Descriptors.send(peerFd, new byte[] {0}, gift);
        loop.poll(0);
        assertThat(ends).containsExactly("the peer sent descriptors that were not asked for true");
        stream.close();
        assertThat(Descriptors.gifts()).isEqualTo(1);
    }

    /** Readiness is reported again: to ask whether there is more would cost each record a system call. */
    @Test
    void shouldReceiveOnceForARecordThatCameAlone() {
        open(0);
        MemorySegment record = MemorySegment.ofArray(new long[] {1}).asReadOnly();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment copy = arena.allocate(record.byteSize()).copyFrom(record);
            for (int i = 1; i <= 3; i++) {
                LIB_C.write(peerFd, copy, copy.byteSize());
                loop.poll(0);
                assertThat(records).isEqualTo(i);
                assertThat(receives).isEqualTo(i);
            }
            LIB_C.write(peerFd, copy, copy.byteSize());
            stream.drain(0);
            assertThat(records).as("when asked for all").isEqualTo(4);
        }
        LIB_C.shutdown(peerFd, SocketApi.SHUT_WR);
        loop.poll(0);
        assertThat(ends).as("the end is noticed").hasSize(1);
    }

    @Test
    void shouldKeepNothingWhileItDiscards() throws IOException {
        open(2);
        Descriptors.send(peerFd, HALF_A_PREFIX, gift, gift);
        loop.poll(0);
        stream.discard();
        assertThat(Descriptors.gifts()).isEqualTo(1);
        Descriptors.send(peerFd, HALF_A_PREFIX, gift);
        loop.poll(0);
        assertThat(Descriptors.gifts()).isEqualTo(1);
    }
}
