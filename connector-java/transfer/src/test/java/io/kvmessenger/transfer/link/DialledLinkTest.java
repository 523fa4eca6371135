package io.kvmessenger.transfer.link;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.SocketCalls;
import io.kvmessenger.transfer.spi.FakeDomain;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A writer whose dial is turned away by a busy target, in time that the test moves. */
final class DialledLinkTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final byte[] KEY = new byte[Admission.KEY_LENGTH_BYTES];
    private static final long CONNECT_LIMIT_NS = 10_000_000_000L;
    private static final long IDLE_LIMIT_NS = 1_000_000_000_000L;
    private static final InetAddress HOST = InetAddress.getLoopbackAddress();
    private static final String MAPPED = "mapped";
    private static final String SENT = "sent";

    private final Arena arena = Arena.ofConfined();
    private final Figures figures = new Figures();
    private final InboundAdmission admission = new InboundAdmission(new Admission(1, "writer", KEY));
    private final FakePort port = new FakePort(admission, arena.allocate(4096), Imm.of(1, 0), 4096);
    private final List<String> events = new ArrayList<>();
    private long nowNs;
    private int refusals;
    private String refused = "connect";
    private long refusal = -Errno.EAGAIN;
    private final EventLoop ofTarget = new EventLoop(LIB_C, () -> nowNs);
    private final EventLoop ofWriter = new EventLoop(crowded(), () -> nowNs);
    private final SocketLinks target = links(ofTarget);
    private final SocketLinks writer = links(ofWriter);
    private final String local = target.listenLocal(MAPPED, port, figures);
    private final String inet = target.listenInet(SENT, HOST, HOST.getHostAddress(), 0, 0, port, figures);

    DialledLinkTest() {
        writer.listenLocal(MAPPED, port, figures);
        writer.listenInet(SENT, HOST, HOST.getHostAddress(), 0, 0, port, figures);
    }

    @AfterEach
    void close() {
        writer.close();
        target.close();
        ofWriter.close();
        ofTarget.close();
        arena.close();
    }

    private static SocketLinks links(EventLoop loop) {
        return new SocketLinks(loop, CONNECT_LIMIT_NS, IDLE_LIMIT_NS, fd -> true, fd -> -1);
    }

    /** At first the kernel's answer for a Unix socket while the listener's queue is full. */
    private LibC crowded() {
        return (LibC) Proxy.newProxyInstance(
                LibC.class.getClassLoader(),
                new Class<?>[] {LibC.class},
                (proxy, method, arguments) -> method.getName().equals(refused) && refusals-- > 0
                        ? refusal(method.getReturnType())
                        : method.invoke(LIB_C, arguments));
    }

    private Object refusal(Class<?> type) {
        return type == long.class ? (Object) refusal : (Object) (int) refusal;
    }

    private OutboundLink dial(TransportAddress... there) {
        return writer.connect(
                new EngineAddress(List.of(there)),
                KEY,
                new LinkEvents() {
                    @Override
                    public boolean onAsked(MemorySegment payload) {
                        return false;
                    }

                    @Override
                    public void onOpened() {
                        events.add("opened");
                    }

                    @Override
                    public void onLost(TransferFault fault, String detail) {
                        events.add(fault + " " + detail);
                    }
                },
                nowNs);
    }

    private void work(OutboundLink link) {
        link.doWork(nowNs);
        ofWriter.poll(0);
        ofTarget.poll(0);
        target.poll(nowNs);
    }

    /** Over tcp it would be slower for as long as the link exists. */
    @Test
    void shouldDialTheUnixSocketAgainThatHadNoRoom() {
        refusals = 4;
        OutboundLink link = dial(new TransportAddress(SENT, inet), new TransportAddress(MAPPED, local));
        for (int i = 0; events.isEmpty() && i < 10_000; i++) {
            work(link);
            nowNs += refusals >= 0 ? DialledLink.REST_MAX_NS : 0;
        }
        assertThat(events).containsExactly("opened");
        assertThat(link.channel(new FakeDomain(MAPPED, 0)).carriesDescriptors()).isTrue();
        link.close();
    }

    /** A hello that comes too late, because the writer had no core: its target has hung up. */
    @ParameterizedTest
    @ValueSource(ints = {Errno.EPIPE, Errno.ECONNRESET})
    void shouldDialAgainAfterAHangUpBeforeItsHello(int errno) {
        refused = "send";
        refusal = -errno;
        refusals = 2;
        OutboundLink link = dial(new TransportAddress(MAPPED, local));
        for (int i = 0; events.isEmpty() && i < 10_000; i++) {
            work(link);
            nowNs += refusals >= 0 ? DialledLink.REST_MAX_NS : 0;
        }
        assertThat(events).containsExactly("opened");
        link.close();
    }

    @Test
    void shouldDialAgainAfterAHangUpWithoutAReasonAndNotForEver() {
        String name = "kvmessenger-hanging-up-" + ProcessHandle.current().pid();
        int listenFd = SOCKETS.listenAbstract(name);
        OutboundLink link = dial(new TransportAddress(MAPPED, name));
        int dials = 0;
        while (events.isEmpty()) {
            int fd = LIB_C.accept4(
                    listenFd, MemorySegment.NULL, MemorySegment.NULL, SocketApi.SOCK_NONBLOCK | SocketApi.SOCK_CLOEXEC);
            if (fd >= 0) {
                dials++;
                LIB_C.close(fd);
            }
            work(link);
            nowNs += DialledLink.REST_MIN_NS;
            assertThat(nowNs).isLessThan(2 * CONNECT_LIMIT_NS);
        }
        assertThat(dials).isGreaterThan(2);
        assertThat(events.getFirst()).startsWith("UNREACHABLE");
        link.close();
        LIB_C.close(listenFd);
    }
}
