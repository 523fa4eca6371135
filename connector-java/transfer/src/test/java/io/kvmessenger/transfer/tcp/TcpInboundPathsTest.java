package io.kvmessenger.transfer.tcp;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.SocketCalls;
import io.kvmessenger.transfer.spi.FakeInboundChannel;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** One peer's data sockets, in time that the test moves: each poll is one duty cycle. */
final class TcpInboundPathsTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final int IMM = Imm.of(1, 0);
    private static final int PAGE_BYTES = 64;
    private static final long READY_LIMIT_NS = 1_000;
    private static final int CYCLES = 5;
    private static final DataNetworks ONE = new DataNetworks(List.of(), List.of());

    private final Arena arena = Arena.ofConfined();
    private final AtomicLong clockNs = new AtomicLong();
    private final EventLoop loop = new EventLoop(countingReads(), clockNs::get);
    private final Figures figures = new Figures();
    private final InboundAdmission admission =
            new InboundAdmission(new Admission(1, "writer", new byte[Admission.KEY_LENGTH_BYTES]));
    private final FakePort port = new FakePort(admission, arena.allocate(PAGE_BYTES * 4L), IMM, PAGE_BYTES);
    private final String name = "kvmessenger-link-" + ProcessHandle.current().pid();
    private final int listenFd = SOCKETS.listenAbstract(name);
    private final List<Integer> writerFds = new ArrayList<>();
    private final FakeInboundChannel channel = new FakeInboundChannel(TcpInboundPathsTest::words);
    private TcpInboundPaths paths;
    private boolean looksSoon;
    private int reads;

    private LibC countingReads() {
        return (LibC) Proxy.newProxyInstance(
                LibC.class.getClassLoader(), new Class<?>[] {LibC.class}, (proxy, method, arguments) -> {
                    reads += method.getName().startsWith("read") ? 1 : 0;
                    return method.invoke(LIB_C, arguments);
                });
    }

    @AfterEach
    void close() {
        paths.close();
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

    /** Writer's sockets by place, from 1. */
    private void open(int dataPathCount) {
        MemorySegment scrap = arena.allocate(1 << 12);
        writerFds.add(-1);
        paths = new TcpInboundPaths(
                loop, port, admission, figures, channel, ONE, dataPathCount, scrap, clockNs.get() + READY_LIMIT_NS);
        for (int role = 1; role <= dataPathCount; role++) {
            assertThat(paths.take(connect(), role, 0)).isTrue();
        }
    }

    private void hangUp(int index) {
        LIB_C.close(writerFds.get(index));
        writerFds.set(index, -1);
    }

    private static String words(MemorySegment record) {
        return IntStream.range(0, PathRecord.count(record))
                .mapToObj(i -> PathRecord.role(record, i) + " " + PathRecord.serial(record, i) + " "
                        + PathRecord.frames(record, i))
                .collect(Collectors.joining(", "));
    }

    private int doWork() {
        int called = loop.poll(0);
        paths.poll(clockNs.get());
        looksSoon = paths.waits();
        return called;
    }

    /** So much later that whatever was taken is told. */
    private void turnLater() {
        clockNs.addAndGet(ProgressPace.AGE_MAX_NS);
        doWork();
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

    private void openTwoNetworks(int wishedCount) {
        List<InetSocketAddress> addresses = IntStream.rangeClosed(1, 2)
                .mapToObj(host -> new InetSocketAddress(InetAddress.ofLiteral("127.0.0." + host), 1))
                .toList();
        DataNetworks two = new DataNetworks(List.of(), addresses);
        MemorySegment scrap = arena.allocate(1 << 12);
        writerFds.add(-1);
        paths = new TcpInboundPaths(loop, port, admission, figures, channel, two, wishedCount, scrap, READY_LIMIT_NS);
    }

    /** It dials as many as it has asked for, all at the one address that it knows. */
    @Test
    void shouldBeReadyForAWriterThatKnowsOfNoNetworks() {
        openTwoNetworks(3);
        for (int role = 1; role <= 3; role++) {
            assertThat(channel.readies).isZero();
            assertThat(paths.take(connect(), role, 0)).isTrue();
        }
        assertThat(channel.readies).isEqualTo(1);
    }

    @Test
    void shouldNotifyAPeerLaterThatDidNotReadWhenItsSocketsCame() {
        channel.full = true;
        open(2);
        doWork();
        assertThat(looksSoon).isTrue();
        assertThat(channel.reported).isEmpty();
        assertThat(channel.readies)
                .as("the peer has not heard that it may write")
                .isZero();

        channel.full = false;
        doWork();
        assertThat(looksSoon).isFalse();
        assertThat(channel.reported)
                .containsExactly(String.valueOf(TcpRecord.ACCEPTED), String.valueOf(TcpRecord.READY));
        assertThat(channel.readies).isEqualTo(1);
        doWork();
        assertThat(channel.reported).hasSize(2);
    }

    @Test
    void shouldEndWhereThePeerDoesNotReadThatItIsReadyInTime() {
        channel.full = true;
        open(1);
        clockNs.set(READY_LIMIT_NS + 1);
        doWork();
        assertThat(channel.over).hasSize(1);
        assertThat(channel.readies).isZero();
    }

    /** Of two networks, one of which is down. */
    @Test
    void shouldBeReadyWithTheFirstSocketWhereTheWriterSaysSo() {
        openTwoNetworks(2);
        assertThat(paths.take(connect(), 2, 0)).isTrue();
        assertThat(channel.readies).isZero();
        assertThat(paths.onRecord(TcpRecord.READY_BY_ONE, MemorySegment.NULL, clockNs.get()))
                .isTrue();
        assertThat(channel.readies).isEqualTo(1);
        clockNs.set(READY_LIMIT_NS + 1);
        doWork();
        assertThat(channel.over).isEmpty();
        assertThat(paths.take(connect(), 1, 0)).as("the network came up").isTrue();
        assertThat(channel.dismissed).isEmpty();
        assertThat(channel.readies).isEqualTo(1);
    }

    /** The writer has sent all and goes: one path ends while the bytes of another are still on their way. */
    @Test
    void shouldLetBytesOnTheirWayLandAfterTheOtherPathsHaveEnded() {
        open(2);
        byte[] frame = frame();
        send(2, frame, 0, TcpFrame.HEADER_BYTES + 10);
        paths.onPeerGone();
        hangUp(1);
        for (int i = 0; i < CYCLES; i++) {
            doWork();
        }
        assertThat(paths.isOver()).as("path 2 has not ended").isFalse();
        send(2, frame, TcpFrame.HEADER_BYTES + 10, frame.length);
        hangUp(2);
        doWork();
        doWork();
        assertThat(port.arrivedWeight).isEqualTo(1);
        assertThat(port.memory.asSlice(0, PAGE_BYTES).get(ValueLayout.JAVA_BYTE, PAGE_BYTES - 1))
                .isEqualTo((byte) 9);
        assertThat(paths.isOver()).isTrue();
        assertThat(channel.over).hasSize(1);
    }

    @Test
    void shouldNotBeCalledAgainForWhatHasEnded() {
        open(2);
        paths.onPeerGone();
        hangUp(1);
        assertThat(doWork()).isEqualTo(1);
        for (int i = 0; i < CYCLES; i++) {
            assertThat(doWork()).as("duty cycle %d", i).isZero();
        }
        assertThat(paths.isOver()).isFalse();
    }

    /** The peer is stopped inside a frame: its window can be closed without it. */
    @Test
    void shouldLetGoOfAHalfReceivedFrame() {
        open(1);
        byte[] frame = frame();
        send(1, frame, 0, TcpFrame.HEADER_BYTES + 10);
        doWork();
        assertThat(port.landings).isEqualTo(1);
        paths.onWindowClosed(port.window);
        assertThat(port.landings).isZero();
        port.memory.fill((byte) 5);
        send(1, frame, TcpFrame.HEADER_BYTES + 10, frame.length);
        doWork();
        assertThat(port.memory.get(ValueLayout.JAVA_BYTE, PAGE_BYTES - 1)).isEqualTo((byte) 5);
        assertThat(port.arrivedWeight).isZero();
        assertThat(port.strays).isEqualTo(1);
        assertThat(channel.dismissed).as("late bytes are no fault").isEmpty();
    }

    @Test
    void shouldBeOverWhenNotAllPathsCameInTime() {
        MemorySegment scrap = arena.allocate(1 << 12);
        writerFds.add(-1);
        paths = new TcpInboundPaths(loop, port, admission, figures, channel, ONE, 2, scrap, READY_LIMIT_NS);
        assertThat(paths.take(connect(), 1, 0)).isTrue();
        clockNs.set(READY_LIMIT_NS);
        doWork();
        assertThat(paths.isOver()).isFalse();
        clockNs.set(READY_LIMIT_NS + 1);
        doWork();
        assertThat(channel.over).containsExactly("the peer did not open all its paths in time");
        assertThat(channel.readies).isZero();
        assertThat(paths.take(connect(), 2, 0)).as("too late").isFalse();
    }

    @Test
    void shouldRefuseAFrameForAnotherPeersWindow() {
        open(1);
        port.owner = null;
        byte[] frame = frame();
        send(1, frame, 0, frame.length);
        doWork();
        assertThat(port.refused).hasSize(1);
        assertThat(port.refused.getFirst()).contains("names a window of another peer");
        assertThat(port.arrivedWeight).isZero();
        assertThat(port.memory.get(ValueLayout.JAVA_BYTE, 0)).isZero();
        assertThat(channel.dismissed).hasSize(1);
        assertThat(channel.dismissed.getFirst()).startsWith("WRITE_REFUSED");
    }

    @Test
    void shouldReportItsOwnErrorAndLetNothingHalfLandedBe() {
        open(1);
        port.thrown = new InternalError("the port has a bug");
        byte[] frame = frame();
        send(1, frame, 0, frame.length);
        doWork();
        assertThat(channel.errors).containsExactly(port.thrown);
        assertThat(port.landings).isZero();
    }

    /** What the writer is told from now on: kind, role, serial, frames. */
    private List<String> reported() {
        List<String> reported = List.copyOf(channel.reported);
        channel.reported.clear();
        return reported;
    }

    private void say(int role, int serial) {
        MemorySegment record = PathRecord.encode(arena.allocate(PathRecord.LENGTH_BYTES, 8), role, serial, 0);
        assertThat(paths.onRecord(TcpRecord.PATH_BROKEN, record, clockNs.get())).isTrue();
    }

    private static String record(int type, int role, int serial, long frames) {
        return type + " " + role + " " + serial + " " + frames;
    }

    @Test
    void shouldReportWhatItTookOfAPathThatEndsInsideAFrame() {
        open(2);
        byte[] frame = frame();
        send(1, frame, 0, frame.length);
        send(1, frame, 0, frame.length - 1);
        hangUp(1);
        for (int i = 0; i < CYCLES; i++) {
            doWork();
        }
        assertThat(port.arrivedWeight).isEqualTo(1);
        assertThat(port.landings).as("nothing more can land").isZero();
        assertThat(channel.over).as("the peer may open another").isEmpty();
        assertThat(reported())
                .endsWith(record(TcpRecord.PATH_ENDED, 1, 0, 1))
                .doesNotContain(record(TcpRecord.PATH_ENDED, 2, 0, 0));
        assertThat(paths.take(connect(), 1, 0))
                .as("a socket of the number that has ended")
                .isFalse();
        assertThat(paths.take(connect(), 1, 1)).isTrue();
        send(4, frame, 0, frame.length);
        doWork();
        turnLater();
        assertThat(port.arrivedWeight).isEqualTo(2);
        assertThat(reported()).containsExactly(record(TcpRecord.PATH_PROGRESS, 1, 1, 1));
    }

    @Test
    void shouldReportManyFramesOfAllPathsByFewRecords() {
        open(2);
        reported();
        byte[] frame = frame();
        int frames = 4 * ProgressPace.FRAMES_MAX;
        for (int i = 0; i < frames; i++) {
            send(1 + i % 2, frame, 0, frame.length);
            doWork();
        }
        assertThat(port.arrivedWeight).isEqualTo(frames);
        assertThat(reported())
                .hasSize(4)
                .last()
                .isEqualTo(TcpRecord.PATH_PROGRESS + " 1 0 " + frames / 2 + ", 2 0 " + frames / 2);
        assertThat(looksSoon).as("all is told").isFalse();
    }

    /** No event tells when the time has come: the worker may not sleep for long. */
    @Test
    void shouldAskToBeTurnedSoonWhileAFrameIsUnreported() {
        open(1);
        reported();
        byte[] frame = frame();
        send(1, frame, 0, frame.length);
        doWork();
        assertThat(reported()).isEmpty();
        assertThat(looksSoon).isTrue();
        turnLater();
        assertThat(reported()).containsExactly(record(TcpRecord.PATH_PROGRESS, 1, 0, 1));
        assertThat(looksSoon).isFalse();
    }

    /** What was taken is not to be sent again by a writer that goes on another way. */
    @Test
    void shouldReportWhatItTookBeforeItStops() {
        open(1);
        reported();
        byte[] frame = frame();
        send(1, frame, 0, frame.length);
        doWork();
        paths.stop();
        assertThat(reported()).containsExactly(record(TcpRecord.PATH_PROGRESS, 1, 0, 1));
    }

    /** To ask once more would cost each write to and fro a system call. */
    @Test
    void shouldNotReadAgainAfterAFrameThatCameAlone() {
        open(1);
        byte[] frame = frame();
        send(1, frame, 0, frame.length);
        reads = 0;
        doWork();
        assertThat(port.arrivedWeight).isEqualTo(1);
        assertThat(reads).as("header, and payload").isEqualTo(2);
        send(1, frame, 0, frame.length);
        send(1, frame, 0, frame.length);
        send(1, frame, 0, 10);
        doWork();
        doWork();
        send(1, frame, 10, frame.length);
        doWork();
        assertThat(port.arrivedWeight).isEqualTo(4);
    }

    /** The writer has seen a break that the target has not: nothing of that socket may land after the answer. */
    @Test
    void shouldEndAPathThatItsWriterHasGivenUp() {
        open(2);
        byte[] frame = frame();
        send(2, frame, 0, TcpFrame.HEADER_BYTES + 10);
        doWork();
        say(2, 0);
        for (int i = 0; i < CYCLES; i++) {
            doWork();
        }
        assertThat(reported()).endsWith(record(TcpRecord.PATH_ENDED, 2, 0, 0));
        assertThat(port.landings).isZero();
        port.memory.fill((byte) 5);
        assertThat(LIB_C.send(writerFds.get(2), arena.allocate(PAGE_BYTES), PAGE_BYTES, SocketApi.MSG_NOSIGNAL))
                .as("the socket is closed")
                .isNegative();
        doWork();
        assertThat(port.memory.get(ValueLayout.JAVA_BYTE, PAGE_BYTES - 1)).isEqualTo((byte) 5);
    }

    /** Given up before it came: it may still wait to be accepted. */
    @Test
    void shouldTakeNoSocketThatItsWriterGaveUpBeforeItCame() {
        open(1);
        say(1, 0);
        doWork();
        doWork();
        say(1, 1);
        doWork();
        doWork();
        assertThat(reported()).endsWith(record(TcpRecord.PATH_ENDED, 1, 0, 0), record(TcpRecord.PATH_ENDED, 1, 1, 0));
        assertThat(paths.take(connect(), 1, 1)).isFalse();
        assertThat(paths.take(connect(), 1, 2)).isTrue();
    }
}
