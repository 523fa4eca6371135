package io.kvmessenger.transfer.tcp;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.RequestQueue;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Paths to peers whose sockets take all that is written to them: only turns keep one from having the worker alone. */
final class TcpSendPathTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final int PAGE_BYTES = (int) TcpFrame.PAYLOAD_AIM_BYTES;
    /** One page each. */
    private static final int FRAME_BYTES = TcpFrame.lengthBytes(1) + PAGE_BYTES;

    private static final int FRAMES_PER_TURN = Math.toIntExact(Math.ceilDiv(TcpSendPath.TURN_BYTES, FRAME_BYTES));
    private static final long LONG_WRITE = 1;
    private static final long SHORT_WRITE = 2;

    private record Memory(RegionDescriptor descriptor, MemorySegment memory) implements Region {
        @Override
        public void deregister() {}
    }

    private final Arena arena = Arena.ofConfined();
    private final Memory memory = new Memory(
            new RegionDescriptor(1, PAGE_BYTES, RegionDescriptor.VERSION, false), arena.allocate(PAGE_BYTES));
    private final EventLoop loop = new EventLoop(
            (LibC) Proxy.newProxyInstance(
                    LibC.class.getClassLoader(),
                    new Class<?>[] {LibC.class},
                    (proxy, method, arguments) -> call(method, arguments)),
            () -> 0);
    private final List<TcpSendPath> paths = new ArrayList<>();
    private final List<Long> completed = new ArrayList<>();

    /** Nothing leaves: the operating system has taken a whole frame. */
    private static Object call(Method method, Object[] arguments) throws Throwable {
        if (method.getName().equals("sendmsg")) {
            return (long) FRAME_BYTES;
        }
        try {
            return method.invoke(LIB_C, arguments);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }

    @AfterEach
    void close() {
        paths.forEach(TcpSendPath::close);
        loop.close();
        arena.close();
    }

    /** A path with one request of so many pages. */
    private TcpSendPath path(int pageCount, long cookie) {
        RequestQueue queue = new RequestQueue(2, new RequestQueue.Completions() {
            @Override
            public void onCompleted(long completedCookie) {
                completed.add(completedCookie);
            }

            @Override
            public void onFailed(long failedCookie, TransferFault fault, String detail) {
                throw new AssertionError(detail);
            }
        });
        PageList pages = new PageList(new int[pageCount], 0, pageCount, PAGE_BYTES, 0);
        assertThat(queue.offer(
                        new PagedWrites(
                                memory, pages, memory.descriptor(), pages, PAGE_BYTES, Imm.withWeight(Imm.of(1, 0), 1)),
                        cookie))
                .isTrue();
        int fd = LIB_C.eventfd(0, MemoryApi.EFD_CLOEXEC | MemoryApi.EFD_NONBLOCK);
        TcpSendPath path = new TcpSendPath(loop, fd, queue, new Figures(), new TcpSendPath.Events() {
            @Override
            public void onBreak() {
                throw new AssertionError("the path broke");
            }

            @Override
            public void onError(Throwable error) {
                throw new AssertionError(error);
            }
        });
        path.open();
        paths.add(path);
        return path;
    }

    @Test
    void shouldLetAnotherPeerSendWhenItsTurnIsOver() {
        TcpSendPath first = path(3 * FRAMES_PER_TURN, LONG_WRITE);
        TcpSendPath second = path(1, SHORT_WRITE);

        assertThat(first.send()).isEqualTo(FRAMES_PER_TURN);
        assertThat(second.send()).isEqualTo(1);
        assertThat(completed).containsExactly(SHORT_WRITE);
    }

    @Test
    void shouldGoOnWhereItsLastTurnEnded() {
        TcpSendPath path = path(2 * FRAMES_PER_TURN + 1, LONG_WRITE);

        assertThat(List.of(path.send(), path.send(), path.send(), path.send()))
                .containsExactly(FRAMES_PER_TURN, FRAMES_PER_TURN, 1, 0);
        assertThat(completed).containsExactly(LONG_WRITE);
    }
}
