package io.kvmessenger.transfer.tcp;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.SocketCalls;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.Proxy;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The writer's end of a data socket whose calls are interrupted: its events come once only. */
final class TcpSendPathTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);

    private final Arena arena = Arena.ofConfined();
    private final EventLoop loop = new EventLoop(interrupted(), () -> 0);
    private final int listenFd =
            SOCKETS.listenAbstract("kvmessenger-send-" + ProcessHandle.current().pid());
    private final int fd = SOCKETS.connectAbstract(
            "kvmessenger-send-" + ProcessHandle.current().pid());
    private final int peerFd = LIB_C.accept4(
            listenFd, MemorySegment.NULL, MemorySegment.NULL, SocketApi.SOCK_NONBLOCK | SocketApi.SOCK_CLOEXEC);
    private int interruptions;
    private int breaks;
    private TcpSendPath path;

    private LibC interrupted() {
        return (LibC) Proxy.newProxyInstance(
                LibC.class.getClassLoader(), new Class<?>[] {LibC.class}, (proxy, method, arguments) -> {
                    boolean moves = method.getName().equals("sendmsg")
                            || method.getName().equals("read");
                    return moves && interruptions-- > 0 ? (long) -Errno.EINTR : method.invoke(LIB_C, arguments);
                });
    }

    @BeforeEach
    void open() {
        path = new TcpSendPath(loop, fd, 0, new TcpSendPath.Events() {
            @Override
            public void onSent(long postId) {
                throw new AssertionError("post " + postId);
            }

            @Override
            public void onBreak() {
                breaks++;
            }

            @Override
            public void onError(Throwable error) {
                throw new AssertionError(error);
            }
        });
        path.open();
        assertThat(loop.poll(0)).as("it is writable").isEqualTo(1);
    }

    @AfterEach
    void close() {
        path.close();
        LIB_C.close(peerFd);
        LIB_C.close(listenFd);
        loop.close();
        arena.close();
    }

    @Test
    void shouldSendAFrameAlthoughTheCallWasInterrupted() {
        interruptions = 3;
        assertThat(path.probe()).isTrue();
        MemorySegment frame = arena.allocate(TcpFrame.LENGTH_MAX_BYTES, 8);
        assertThat(LIB_C.read(peerFd, frame, TcpFrame.LENGTH_MAX_BYTES)).isEqualTo(TcpFrame.HEADER_BYTES);
        assertThat(TcpFrame.fault(frame)).isNull();
        assertThat(TcpFrame.isProbe(frame)).isTrue();
        assertThat(path.holdsOnlyProbe()).isTrue();
        assertThat(path.onTaken(1)).isTrue();
        assertThat(path.isIdle()).isTrue();
    }

    @Test
    void shouldSeeTheEndAlthoughTheCallWasInterrupted() {
        LIB_C.shutdown(peerFd, SocketApi.SHUT_WR);
        interruptions = 3;
        loop.poll(0);
        assertThat(breaks).isEqualTo(1);
    }
}
