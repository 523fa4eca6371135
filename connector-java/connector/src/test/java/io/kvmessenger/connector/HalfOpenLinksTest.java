package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.socket.SocketCalls;
import io.netty.channel.ChannelOption;
import io.netty.channel.socket.nio.NioSocketChannel;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.InetAddress;
import java.util.HashMap;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A dialled link of which the peer's kernel knows nothing: a prefiller that ended at the moment of the dial. */
@Timeout(900)
class HalfOpenLinksTest {
    /** The link ends by a probe, not by this. */
    private static final long CONNECT_LIMIT_MILLIS = 3_600_000;

    /** A socket that is closed in this mode disappears without a word to the other end. */
    private static final int TCP_REPAIR = 19;

    private static final LibC LIB_C = new FfmLibC();

    @Test
    void shouldReportALinkThatThePeersKernelDoesNotHave() throws Exception {
        Inbox inbox = new Inbox(System::nanoTime, () -> {});
        CloseOnExec closeOnExec = new CloseOnExec(LIB_C);
        NettyControlNetwork network =
                new NettyControlNetwork(inbox, CONNECT_LIMIT_MILLIS, NettyControlNetwork.LINKS_MAX, closeOnExec, null);
        SocketCalls sockets = new SocketCalls(LIB_C);
        int listener = sockets.listenInet("a test", InetAddress.getLoopbackAddress(), 0);
        try {
            network.dial("127.0.0.1", sockets.port(listener));
            vanish(listener);
            while (inbox.size() < 2) { // opened, and closed
                Thread.sleep(1);
            }
        } finally {
            LIB_C.close(listener);
            network.close();
            closeOnExec.close();
        }
    }

    private static void vanish(int listener) throws InterruptedException {
        int fd = LIB_C.accept4(listener, MemorySegment.NULL, MemorySegment.NULL, 0);
        while (fd < 0) {
            Thread.sleep(1);
            fd = LIB_C.accept4(listener, MemorySegment.NULL, MemorySegment.NULL, 0);
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment on = arena.allocateFrom(ValueLayout.JAVA_INT, 1);
            int set = LIB_C.setsockopt(fd, SocketApi.IPPROTO_TCP, TCP_REPAIR, on, Integer.BYTES);
            assumeTrue(set == 0, "a socket disappears without a word only for a user with CAP_NET_ADMIN");
        } finally {
            LIB_C.close(fd);
        }
    }

    @Test
    void shouldProbeADialledLinkWhileNothingIsSentOnIt() {
        NioSocketChannel channel = new NioSocketChannel();
        try {
            IdleProbes.begin(channel);
            Map<String, Object> options = new HashMap<>();
            channel.config().getOptions().forEach((option, value) -> options.put(option.name(), value));
            assertThat(options).containsAllEntriesOf(IdleProbes.VALUES);
            assertThat(options).containsEntry(ChannelOption.SO_KEEPALIVE.name(), true);
        } finally {
            channel.unsafe().closeForcibly();
        }
    }
}
