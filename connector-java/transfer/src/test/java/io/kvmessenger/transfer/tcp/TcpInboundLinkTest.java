package io.kvmessenger.transfer.tcp;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.socket.ControlStream;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.SocketCalls;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** One link over real sockets, in time that the test moves: each poll is one duty cycle. */
final class TcpInboundLinkTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final int IMM = Imm.of(1, 0);
    private static final int PAGE_BYTES = 64;
    private static final long READY_LIMIT_NS = 1_000;
    private static final int TURNS = 5;

    private final Arena arena = Arena.ofConfined();
    private final AtomicLong clockNs = new AtomicLong();
    private final EventLoop loop = new EventLoop(LIB_C, clockNs::get);
    private final Figures figures = new Figures();
    private final InboundAdmission admission =
            new InboundAdmission(new Admission(1, "writer", new byte[Admission.KEY_LENGTH_BYTES]));
    private final FakePort port = new FakePort(admission, arena.allocate(PAGE_BYTES * 4L), IMM, PAGE_BYTES);
    private final String name = "kvmessenger-link-" + ProcessHandle.current().pid();
    private final int listenFd = SOCKETS.listenAbstract(name);
    private final List<Integer> writerFds = new ArrayList<>();
    private TcpInboundLink link;

    @AfterEach
    void close() {
        link.abandon();
        writerFds.forEach(LIB_C::close);
        LIB_C.close(listenFd);
        loop.close();
        arena.close();
    }

    /** Two ends: the writer's is kept, the target's returned. */
    private int connect() {
        writerFds.add(SOCKETS.connectAbstract(name));
        return LIB_C.accept4(
                listenFd, MemorySegment.NULL, MemorySegment.NULL, SocketApi.SOCK_NONBLOCK | SocketApi.SOCK_CLOEXEC);
    }

    /** Writer's sockets: the control stream first, then the data paths by role. */
    private void open(int dataPathCount) {
        MemorySegment scrap = arena.allocate(1 << 12);
        link = new TcpInboundLink(
                loop, port, admission, figures, connect(), dataPathCount, scrap, clockNs.get() + READY_LIMIT_NS);
        for (int role = 1; role <= dataPathCount; role++) {
            assertThat(link.attach(connect(), role, 0)).isTrue();
        }
    }

    private void hangUp(int index) {
        LIB_C.close(writerFds.get(index));
        writerFds.set(index, -1);
    }

    private int turn() {
        int called = loop.poll(0);
        link.doWork(clockNs.get());
        return called;
    }

    /** One page at the region's start, of weight 1, and its payload. */
    private byte[] frame() {
        MemorySegment frame = arena.allocate(TcpFrame.HEADER_BYTES + PAGE_BYTES);
        TcpFrame.encode(frame, 1, 1, IMM, 1, PAGE_BYTES);
        TcpFrame.setTargetOffset(frame, 0, 0);
        frame.asSlice(TcpFrame.HEADER_BYTES).fill((byte) 9);
        return frame.toArray(ValueLayout.JAVA_BYTE);
    }

    private void send(int index, byte[] bytes, int from, int to) {
        MemorySegment copy = arena.allocate(to - from);
        MemorySegment.copy(bytes, from, copy, ValueLayout.JAVA_BYTE, 0, to - from);
        assertThat(LIB_C.write(writerFds.get(index), copy, to - from)).isEqualTo(to - from);
    }

    /** The writer has sent all and goes: one path ends while the bytes of another are still on their way. */
    @Test
    void shouldLetBytesOnTheirWayLandAfterTheOtherPathsHaveEnded() {
        open(2);
        byte[] frame = frame();
        send(2, frame, 0, TcpFrame.HEADER_BYTES + 10);
        hangUp(0);
        hangUp(1);
        for (int i = 0; i < TURNS; i++) {
            turn();
        }
        assertThat(port.closed).as("path 2 has not ended").isEmpty();
        send(2, frame, TcpFrame.HEADER_BYTES + 10, frame.length);
        hangUp(2);
        turn();
        turn();
        assertThat(port.arrivedWeight).isEqualTo(1);
        assertThat(port.memory.asSlice(0, PAGE_BYTES).get(ValueLayout.JAVA_BYTE, PAGE_BYTES - 1))
                .isEqualTo((byte) 9);
        assertThat(port.closed).hasSize(1);
    }

    @Test
    void shouldNotBeCalledAgainForWhatHasEnded() {
        open(2);
        hangUp(0);
        hangUp(1);
        assertThat(turn()).isEqualTo(2);
        for (int i = 0; i < TURNS; i++) {
            assertThat(turn()).as("turn %d", i).isZero();
        }
        assertThat(port.closed).isEmpty();
        clockNs.addAndGet(TcpInboundLink.GOODBYE_LIMIT_NS + 1);
        turn();
        assertThat(port.closed).as("the rest did not end in time").hasSize(1);
    }

    /** The peer is stopped inside a frame: its window can be closed without it. */
    @Test
    void shouldLetGoOfAHalfReceivedFrame() {
        open(1);
        byte[] frame = frame();
        send(1, frame, 0, TcpFrame.HEADER_BYTES + 10);
        turn();
        assertThat(port.landings).isEqualTo(1);
        link.onWindowClosed(port.window);
        assertThat(port.landings).isZero();
        port.memory.fill((byte) 5);
        send(1, frame, TcpFrame.HEADER_BYTES + 10, frame.length);
        turn();
        assertThat(port.memory.get(ValueLayout.JAVA_BYTE, PAGE_BYTES - 1)).isEqualTo((byte) 5);
        assertThat(port.arrivedWeight).isZero();
        assertThat(port.strays).isEqualTo(1);
        assertThat(port.closed).as("late bytes are no fault").isEmpty();
    }

    @Test
    void shouldGiveBackTheAdmissionOfALinkThatStaysHalfOpen() {
        MemorySegment scrap = arena.allocate(1 << 12);
        link = new TcpInboundLink(loop, port, admission, figures, connect(), 2, scrap, READY_LIMIT_NS);
        assertThat(link.attach(connect(), 1, 0)).isTrue();
        clockNs.set(READY_LIMIT_NS);
        turn();
        assertThat(admission.link()).isSameAs(link);
        clockNs.set(READY_LIMIT_NS + 1);
        turn();
        assertThat(admission.link()).isNull();
        assertThat(port.closed).as("the key may be used once more").isEmpty();
        assertThat(link.attach(connect(), 2, 0)).as("too late").isFalse();
    }

    @Test
    void shouldRefuseAFrameForAnotherPeersWindow() {
        open(1);
        port.owner = null;
        byte[] frame = frame();
        send(1, frame, 0, frame.length);
        turn();
        assertThat(port.refused).hasSize(1);
        assertThat(port.refused.getFirst()).contains("names a window of another peer");
        assertThat(port.arrivedWeight).isZero();
        assertThat(port.memory.get(ValueLayout.JAVA_BYTE, 0)).isZero();
        assertThat(port.closed).hasSize(1);
    }

    @Test
    void shouldEndWithItsOwnError() {
        open(1);
        port.thrown = new InternalError("the port has a bug");
        byte[] frame = frame();
        send(1, frame, 0, frame.length);
        turn();
        assertThat(port.closed).hasSize(1);
        assertThat(port.closed.getFirst()).contains("InternalError", "the port has a bug");
        assertThat(port.landings).isZero();
    }

    /** What the writer reads of its control stream: type, role, serial, frames. */
    private List<String> told() {
        List<String> told = new ArrayList<>();
        MemorySegment prefix = arena.allocate(8, 8);
        while (LIB_C.read(writerFds.getFirst(), prefix, 8) == 8) {
            int lengthBytes = prefix.get(ValueLayout.JAVA_INT, 4);
            MemorySegment record = arena.allocate(Math.max(1, lengthBytes), 8);
            assertThat(LIB_C.read(writerFds.getFirst(), record, lengthBytes)).isEqualTo(lengthBytes);
            String path = lengthBytes == 0
                    ? ""
                    : " " + PathRecord.role(record) + " " + PathRecord.serial(record) + " " + PathRecord.frames(record);
            told.add(prefix.get(ValueLayout.JAVA_INT, 0) + path);
        }
        return told;
    }

    private void say(int role, int serial) {
        MemorySegment bytes = arena.allocate(8 + PathRecord.LENGTH_BYTES, 8);
        bytes.set(ValueLayout.JAVA_INT, 0, ControlStream.PATH_BROKEN);
        bytes.set(ValueLayout.JAVA_INT, 4, PathRecord.LENGTH_BYTES);
        PathRecord.encode(bytes.asSlice(8), role, serial, 0);
        assertThat(LIB_C.write(writerFds.getFirst(), bytes, bytes.byteSize())).isEqualTo(bytes.byteSize());
    }

    private static String record(int type, int role, int serial, long frames) {
        return type + " " + role + " " + serial + " " + frames;
    }

    @Test
    void shouldTellWhatItTookOfAPathThatEndsInsideAFrame() {
        open(2);
        byte[] frame = frame();
        send(1, frame, 0, frame.length);
        send(1, frame, 0, frame.length - 1);
        hangUp(1);
        for (int i = 0; i < TURNS; i++) {
            turn();
        }
        assertThat(port.arrivedWeight).isEqualTo(1);
        assertThat(port.landings).as("nothing more can land").isZero();
        assertThat(port.closed).as("the peer may open another").isEmpty();
        assertThat(told())
                .endsWith(record(ControlStream.PATH_ENDED, 1, 0, 1))
                .doesNotContain(record(ControlStream.PATH_ENDED, 2, 0, 0));
        assertThat(link.attach(connect(), 1, 0))
                .as("a socket of the number that has ended")
                .isFalse();
        assertThat(link.attach(connect(), 1, 1)).isTrue();
        send(4, frame, 0, frame.length);
        turn();
        turn();
        assertThat(port.arrivedWeight).isEqualTo(2);
        assertThat(told()).containsExactly(record(ControlStream.PATH_PROGRESS, 1, 1, 1));
    }

    /** The writer has seen a break that the target has not: nothing of that socket may land after the answer. */
    @Test
    void shouldEndAPathThatItsWriterHasGivenUp() {
        open(2);
        byte[] frame = frame();
        send(2, frame, 0, TcpFrame.HEADER_BYTES + 10);
        turn();
        say(2, 0);
        for (int i = 0; i < TURNS; i++) {
            turn();
        }
        assertThat(told()).endsWith(record(ControlStream.PATH_ENDED, 2, 0, 0));
        assertThat(port.landings).isZero();
        port.memory.fill((byte) 5);
        assertThat(LIB_C.send(writerFds.get(2), arena.allocate(PAGE_BYTES), PAGE_BYTES, SocketApi.MSG_NOSIGNAL))
                .as("the socket is closed")
                .isNegative();
        turn();
        assertThat(port.memory.get(ValueLayout.JAVA_BYTE, PAGE_BYTES - 1)).isEqualTo((byte) 5);
    }

    /** Given up before it came: it may still wait to be accepted. */
    @Test
    void shouldTakeNoSocketThatItsWriterGaveUpBeforeItCame() {
        open(1);
        say(1, 0);
        turn();
        turn();
        say(1, 1);
        turn();
        turn();
        assertThat(told())
                .endsWith(record(ControlStream.PATH_ENDED, 1, 0, 0), record(ControlStream.PATH_ENDED, 1, 1, 0));
        assertThat(link.attach(connect(), 1, 1)).isFalse();
        assertThat(link.attach(connect(), 1, 2)).isTrue();
    }
}
