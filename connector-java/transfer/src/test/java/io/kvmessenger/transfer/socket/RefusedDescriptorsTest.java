package io.kvmessenger.transfer.socket;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.Proxy;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** A record with descriptors that the operating system refuses, for each reason that it has. */
final class RefusedDescriptorsTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    /** All error numbers of Linux. */
    private static final int ERRNO_MAX = 133;
    /** There is no room now; or the peer has gone, which its hang-up shows to the stream's reader. */
    private static final Set<Integer> PASSING = Set.of(
            Errno.EAGAIN, Errno.EINTR, Errno.ENOBUFS, Errno.ENOMEM, Errno.ETOOMANYREFS, Errno.EPIPE, Errno.ECONNRESET);

    private final EventLoop loop = new EventLoop(refusing(), () -> 0);
    private final String name = "kvmessenger-refused-" + ProcessHandle.current().pid();
    private final int listenFd = SOCKETS.listenAbstract(name);
    private final int peerFd = SOCKETS.connectAbstract(name);
    private final int gift = Descriptors.gift();
    private final ControlStream stream = new ControlStream(
            loop,
            LIB_C.accept4(
                    listenFd, MemorySegment.NULL, MemorySegment.NULL, SocketApi.SOCK_NONBLOCK | SocketApi.SOCK_CLOEXEC),
            new DeafReader(),
            0);
    /** 0 while nothing is refused. */
    private int errno;

    private LibC refusing() {
        return (LibC) Proxy.newProxyInstance(
                LibC.class.getClassLoader(),
                new Class<?>[] {LibC.class},
                (proxy, method, arguments) -> method.getName().equals("sendmsg") && errno != 0
                        ? (Object) (long) -errno
                        : method.invoke(LIB_C, arguments));
    }

    static IntStream errnos() {
        return IntStream.rangeClosed(1, ERRNO_MAX);
    }

    @AfterEach
    void close() {
        stream.close();
        LIB_C.close(gift);
        LIB_C.close(peerFd);
        LIB_C.close(listenFd);
        loop.close();
    }

    @ParameterizedTest
    @MethodSource("errnos")
    void shouldTryAgainOnlyWhatMayPass(int given) {
        errno = given;
        for (int turn = 0; turn < 2; turn++) {
            if (PASSING.contains(given)) {
                assertThat(offer()).isFalse();
            } else {
                assertThatThrownBy(this::offer)
                        .isInstanceOf(IllegalStateException.class)
                        .hasMessageEndingWith(" " + Errno.name(given));
            }
        }
        errno = 0;
        assertThat(offer()).as("nothing is left of what was refused").isTrue();
    }

    private boolean offer() {
        return stream.offerDescriptors(ControlRecord.type(16, 0), MemorySegment.NULL, gift);
    }
}
