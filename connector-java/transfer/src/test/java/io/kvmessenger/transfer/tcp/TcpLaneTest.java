package io.kvmessenger.transfer.tcp;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.SocketCalls;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** What a lane reports of a socket that broke before it was used, where the control socket is full. */
final class TcpLaneTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final long PAUSED_NS = 10 * TcpLane.REST_MAX_NS;

    private long nowNs;
    private final EventLoop loop = new EventLoop(LIB_C, () -> nowNs);
    private final String name = "kvmessenger-lane-" + ProcessHandle.current().pid();
    private final int listenFd = SOCKETS.listenAbstract(name);
    private final int peerFd = SOCKETS.connectAbstract(name);
    private final List<String> heard = new ArrayList<>();
    private int refusals;
    private final TcpLane lane = new TcpLane(owner(), 3, 0);

    @AfterEach
    void close() {
        lane.close();
        LIB_C.close(peerFd);
        LIB_C.close(listenFd);
        loop.close();
    }

    /** The target gives the place to another socket only once it knows, and dials in vain would cost the pause. */
    @ParameterizedTest
    @CsvSource({"0", "1", "2", "7"})
    void shouldReportABreakBeforeItDialsAgain(int refusedTimes) {
        lane.onConnected(LIB_C.accept4(
                listenFd, MemorySegment.NULL, MemorySegment.NULL, SocketApi.SOCK_NONBLOCK | SocketApi.SOCK_CLOEXEC));
        refusals = refusedTimes;
        lane.onBreak();
        for (int i = 0; i <= refusedTimes; i++) {
            nowNs += PAUSED_NS;
            lane.doWork(nowNs, nowNs + PAUSED_NS);
        }
        assertThat(heard.subList(0, 4)).containsExactlyInAnyOrder("connected", "failed", "broken 3 0", "dials");
        assertThat(heard.indexOf("broken 3 0")).isLessThan(heard.indexOf("dials"));
    }

    private TcpLane.Owner owner() {
        return (TcpLane.Owner) Proxy.newProxyInstance(
                TcpLane.Owner.class.getClassLoader(),
                new Class<?>[] {TcpLane.Owner.class},
                (proxy, method, given) -> switch (method.getName()) {
                    case "loop" -> loop;
                    case "location" -> "there";
                    case "idleLimitNs" -> PAUSED_NS;
                    case "openSocket" -> {
                        heard.add("dials");
                        yield -Errno.ECONNREFUSED;
                    }
                    case "report" -> {
                        boolean taken = refusals-- <= 0;
                        if (taken) {
                            heard.add("broken " + given[1] + " " + given[2]);
                        }
                        yield taken;
                    }
                    case "onConnected" -> hear("connected");
                    case "onDialFailed" -> hear("failed");
                    default -> null;
                });
    }

    private Object hear(String event) {
        heard.add(event);
        return null;
    }
}
