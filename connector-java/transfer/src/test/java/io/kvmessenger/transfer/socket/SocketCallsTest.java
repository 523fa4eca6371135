package io.kvmessenger.transfer.socket;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.InetAddress;
import org.junit.jupiter.api.Test;

class SocketCallsTest {
    private static final int NAME_LENGTH_MAX_BYTES = 16;

    @Test
    void shouldWatchTheProcessAtTheOtherEnd() {
        String name = "kvmessenger-death-" + ProcessHandle.current().pid();
        int listener = SocketCalls.listenAbstract(name);
        int fd = SocketCalls.connectAbstract(name);
        int death = SocketCalls.deathOfPeer(fd);
        assertThat(death).isNotNegative();
        try (EventLoop loop = new EventLoop(() -> 0)) {
            loop.add(death, Epoll.EPOLLIN, new Pollable() {
                @Override
                public void onReady(int mask, long nowNs) {}

                @Override
                public void onError(Throwable error) {}
            });
            assertThat(loop.poll(0)).as("this process lives").isZero();
        }
        LibC.close(death);
        LibC.close(fd);
        LibC.close(listener);
    }

    @Test
    void shouldNotLetLoopbackBePaced() {
        InetAddress loopback = InetAddress.getLoopbackAddress();
        int listener = SocketCalls.listenInet(loopback, 0);
        int fd = SocketCalls.connectInet(loopback, SocketCalls.port(listener));
        try (Arena arena = Arena.ofConfined()) {
            SocketCalls.chooseReno(fd);
            MemorySegment name = arena.allocate(NAME_LENGTH_MAX_BYTES);
            MemorySegment length = arena.allocateFrom(ValueLayout.JAVA_INT, NAME_LENGTH_MAX_BYTES);
            assertThat(LibC.getsockopt(fd, SocketApi.IPPROTO_TCP, SocketApi.TCP_CONGESTION, name, length))
                    .isZero();
            assertThat(name.getString(0)).isEqualTo("reno");
        } finally {
            LibC.close(fd);
            LibC.close(listener);
        }
    }
}
