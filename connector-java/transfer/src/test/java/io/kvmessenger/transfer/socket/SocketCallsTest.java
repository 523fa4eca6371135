package io.kvmessenger.transfer.socket;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

class SocketCallsTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final int NAME_LENGTH_MAX_BYTES = 16;

    @Test
    void shouldWatchTheProcessAtTheOtherEnd() {
        String name = "kvmessenger-death-" + ProcessHandle.current().pid();
        int listener = SOCKETS.listenAbstract(name);
        int fd = SOCKETS.connectAbstract(name);
        int death = SOCKETS.deathOfPeer(fd);
        assertThat(death).isNotNegative();
        try (EventLoop loop = new EventLoop(LIB_C, () -> 0)) {
            loop.add(death, Epoll.EPOLLIN, new Pollable() {
                @Override
                public void onReady(int mask, long nowNs) {}

                @Override
                public void onError(Throwable error) {}
            });
            assertThat(loop.poll(0)).as("this process lives").isZero();
        }
        LIB_C.close(death);
        LIB_C.close(fd);
        LIB_C.close(listener);
    }

    private enum PeersEnd {
        OPEN,
        SHUT_DOWN,
        CLOSED
    }

    /** Before Linux 6.5 a process is found by its number, which is another's once it has ended. */
    @ParameterizedTest
    @EnumSource
    void shouldNotTakeAnotherProcessForAPeerThatHasGone(PeersEnd peersEnd) {
        String name = "kvmessenger-reused-" + ProcessHandle.current().pid();
        int listener = SOCKETS.listenAbstract(name);
        int peer = SOCKETS.connectAbstract(name);
        int fd = LIB_C.accept4(
                listener, MemorySegment.NULL, MemorySegment.NULL, SocketApi.SOCK_NONBLOCK | SocketApi.SOCK_CLOEXEC);
        if (peersEnd == PeersEnd.SHUT_DOWN) {
            LIB_C.shutdown(peer, SocketApi.SHUT_WR);
        } else if (peersEnd == PeersEnd.CLOSED) {
            LIB_C.close(peer);
        }
        int death = new SocketCalls(ofEarlierLinux()).deathOfPeer(fd);
        if (peersEnd == PeersEnd.OPEN) {
            assertThat(death).isNotNegative();
            LIB_C.close(death);
            LIB_C.close(peer);
        } else {
            assertThat(death).isEqualTo(-Errno.ESRCH);
        }
        LIB_C.close(fd);
        LIB_C.close(listener);
    }

    /** It knows the number of a peer's process, which is this one's, and nothing better. */
    private static LibC ofEarlierLinux() {
        int noSuchOption = -92;
        return (LibC) Proxy.newProxyInstance(
                LibC.class.getClassLoader(),
                new Class<?>[] {LibC.class},
                (proxy, method, arguments) ->
                        method.getName().equals("getsockopt") && (int) arguments[2] == SocketApi.SO_PEERPIDFD
                                ? (Object) noSuchOption
                                : method.invoke(LIB_C, arguments));
    }

    @Test
    void shouldReportThisUsersSocketsFromAnothers() {
        String name = "kvmessenger-user-" + ProcessHandle.current().pid();
        int listener = SOCKETS.listenAbstract(name);
        int fd = SOCKETS.connectAbstract(name);
        LibC ofAnotherUser = new RefusingLibC().refuse("getuid", 1).libC();

        assertThat(SOCKETS.isOfThisUser(fd)).isTrue();
        assertThat(new SocketCalls(ofAnotherUser).isOfThisUser(fd)).isFalse();
        LIB_C.close(fd);
        LIB_C.close(listener);
    }

    /** By the kernel too, since peers of an earlier version give no heartbeats. */
    @ParameterizedTest
    @CsvSource({"15000, 3", "300, 1", "600000, 120", "9223372036854, 32767"})
    void shouldHaveIdleConnectionsProbed(long idleLimitMillis, int probeSeconds) {
        InetAddress loopback = InetAddress.getLoopbackAddress();
        int listener = SOCKETS.listenInet("listen_host", loopback, 0);
        int fd = SOCKETS.connectInet(loopback, SOCKETS.port(listener));
        try {
            SOCKETS.keepAlive(fd, TimeUnit.MILLISECONDS.toNanos(idleLimitMillis));
            assertThat(option(fd, SocketApi.SOL_SOCKET, SocketApi.SO_KEEPALIVE)).isEqualTo(1);
            assertThat(option(fd, SocketApi.IPPROTO_TCP, SocketApi.TCP_KEEPIDLE))
                    .isEqualTo(probeSeconds);
            assertThat(option(fd, SocketApi.IPPROTO_TCP, SocketApi.TCP_KEEPINTVL))
                    .isEqualTo(probeSeconds);
            assertThat(option(fd, SocketApi.IPPROTO_TCP, SocketApi.TCP_KEEPCNT)).isEqualTo(Pulse.BEATS - 1);
        } finally {
            LIB_C.close(fd);
            LIB_C.close(listener);
        }
    }

    private static int option(int fd, int level, int name) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment value = arena.allocate(ValueLayout.JAVA_INT);
            MemorySegment length = arena.allocateFrom(ValueLayout.JAVA_INT, Integer.BYTES);
            assertThat(LIB_C.getsockopt(fd, level, name, value, length)).isZero();
            return value.get(ValueLayout.JAVA_INT, 0);
        }
    }

    @Test
    void shouldNotLetLoopbackBePaced() {
        InetAddress loopback = InetAddress.getLoopbackAddress();
        int listener = SOCKETS.listenInet("listen_host", loopback, 0);
        int fd = SOCKETS.connectInet(loopback, SOCKETS.port(listener));
        try (Arena arena = Arena.ofConfined()) {
            SOCKETS.chooseReno(fd);
            MemorySegment name = arena.allocate(NAME_LENGTH_MAX_BYTES);
            MemorySegment length = arena.allocateFrom(ValueLayout.JAVA_INT, NAME_LENGTH_MAX_BYTES);
            assertThat(LIB_C.getsockopt(fd, SocketApi.IPPROTO_TCP, SocketApi.TCP_CONGESTION, name, length))
                    .isZero();
            assertThat(name.getString(0)).isEqualTo("reno");
        } finally {
            LIB_C.close(fd);
            LIB_C.close(listener);
        }
    }
}
