package io.kvmessenger.transfer.tcp;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.socket.SocketCalls;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A real socket over loopback, whose peer reads nothing. */
final class SendBufferTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    /** One call hands the kernel as many; it takes them whole or up to the bound. */
    private static final int WRITE_BYTES = 32 << 10;

    /** {@code SOCK_SNDBUF_LOCK} of linux/socket.h. */
    private static final int SNDBUF_LOCK = 1;

    private final Arena arena = Arena.ofConfined();
    private final MemorySegment bytes = arena.allocate(WRITE_BYTES);
    private final int listenFd = SOCKETS.listenInet("test", InetAddress.getLoopbackAddress(), 0);
    private final int fd = SOCKETS.connectInet(InetAddress.getLoopbackAddress(), SOCKETS.port(listenFd));
    private final SendBuffer buffer = new SendBuffer(SOCKETS, fd);

    @AfterEach
    void close() {
        LIB_C.close(fd);
        LIB_C.close(listenFd);
        arena.close();
    }

    private static int sizeOf(int fd) {
        return SOCKETS.getInt(fd, SocketApi.SOL_SOCKET, SocketApi.SO_SNDBUF);
    }

    private static int locksOf(int fd) {
        return SOCKETS.getInt(fd, SocketApi.SOL_SOCKET, SocketApi.SO_BUF_LOCK);
    }

    private void assumeLocks() {
        assumeTrue(locksOf(fd) >= 0, "this kernel has no SO_BUF_LOCK (Linux 5.14)");
    }

    /** Writes until the socket is full. */
    private void fill() {
        long written;
        do {
            written = LIB_C.write(fd, bytes, WRITE_BYTES);
        } while (written > 0);
        assertThat(written).isEqualTo(-Errno.EAGAIN);
    }

    private int heldBytes() {
        MemorySegment value = arena.allocate(ValueLayout.JAVA_INT);
        assertThat(LIB_C.ioctl(fd, SocketApi.SIOCOUTQ, value)).isZero();
        return value.get(ValueLayout.JAVA_INT, 0);
    }

    @ParameterizedTest
    @ValueSource(longs = {64 << 10, 96 << 10, 128 << 10, 256 << 10, 384 << 10})
    void shouldHoldNoMoreThanItsBoundAndTheKernelsAfterwards(long boundBytes) {
        assumeLocks();
        int free = sizeOf(fd);
        buffer.bound(boundBytes);
        assertThat(locksOf(fd)).isEqualTo(SNDBUF_LOCK);
        fill();
        int held = heldBytes();
        // the kernel admits what it had begun to take
        assertThat(held).isGreaterThan((int) boundBytes / 4).isLessThan((int) boundBytes + 2 * WRITE_BYTES);
        buffer.bound(2 * boundBytes);
        fill();
        assertThat(heldBytes()).isGreaterThan(held).isLessThan(2 * (int) boundBytes + 2 * WRITE_BYTES);
        buffer.free();
        assertThat(locksOf(fd)).isZero();
        assertThat(sizeOf(fd)).isEqualTo(free);
    }

    /** More than this user may set: the kernel would take less, and a fast link would be slow. */
    @Test
    void shouldLeaveTheKernelsSizeWhereTheBoundIsTooLarge() {
        assumeLocks();
        int free = sizeOf(fd);
        for (long each : new long[] {1L << 32, 1L << 40, Long.MAX_VALUE - 1}) {
            buffer.bound(each);
            assertThat(locksOf(fd)).isZero();
            assertThat(sizeOf(fd)).isEqualTo(free);
        }
        buffer.bound(64 << 10);
        buffer.bound(1L << 40);
        assertThat(locksOf(fd)).isZero();
        assertThat(sizeOf(fd)).isEqualTo(free);
    }

    @Test
    void shouldLeaveASizeThatWasFixedBefore() {
        assumeLocks();
        SOCKETS.setInt(fd, SocketApi.SOL_SOCKET, SocketApi.SO_SNDBUF, 50_000);
        buffer.bound(128 << 10);
        buffer.free();
        assertThat(sizeOf(fd)).isEqualTo(100_000);
        assertThat(locksOf(fd)).isEqualTo(SNDBUF_LOCK);
    }

    /** There a size that is set once is fixed for ever. */
    @Test
    void shouldChangeNothingOnAKernelThatCannotTakeABoundBack() {
        LibC old = (LibC) Proxy.newProxyInstance(
                LibC.class.getClassLoader(),
                new Class<?>[] {LibC.class},
                (proxy, method, arguments) ->
                        method.getName().equals("getsockopt") && arguments[2].equals(SocketApi.SO_BUF_LOCK)
                                ? -Errno.EINVAL
                                : method.invoke(LIB_C, arguments));
        int free = sizeOf(fd);
        SendBuffer there = new SendBuffer(new SocketCalls(old), fd);
        there.bound(64 << 10);
        assertThat(sizeOf(fd)).isEqualTo(free);
        there.free();
        assertThat(sizeOf(fd)).isEqualTo(free);
    }

    @Test
    void shouldKnowTheRoundTripOfAConnectionThatHasOne() {
        int peerFd = LIB_C.accept4(listenFd, MemorySegment.NULL, MemorySegment.NULL, SocketApi.SOCK_CLOEXEC);
        assertThat(SOCKETS.leastRoundTripNs(fd)).isBetween(1L, 60_000_000_000L);
        assertThat(SOCKETS.leastRoundTripNs(listenFd)).isZero();
        LIB_C.close(peerFd);
    }
}
