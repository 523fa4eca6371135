package io.kvmessenger.transfer.shm;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.socket.Challenge;
import io.kvmessenger.transfer.socket.ControlStream;
import io.kvmessenger.transfer.socket.Descriptors;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.SocketCalls;
import io.kvmessenger.transfer.spi.Endpoint;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.LinkEvents;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OutboundLink;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** One end of shared memory against sockets that say what they like. */
final class ShmDomainTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final byte[] KEY = new byte[Admission.KEY_LENGTH_BYTES];
    private static final byte[] WRONG_KEY = new byte[] {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    private static final long NOW_NS = 0;

    private final Arena arena = Arena.ofConfined();
    private final EventLoop loop = new EventLoop(LIB_C, () -> NOW_NS);
    private final Figures figures = new Figures();
    private final InboundAdmission admission = new InboundAdmission(new Admission(1, "writer", KEY));
    private final FakePort port = new FakePort(admission, arena.allocate(4096), Imm.of(1, 0), 4096);
    private final List<String> lost = new ArrayList<>();
    private final List<Endpoint> opened = new ArrayList<>();
    private final List<Long> sent = new ArrayList<>();
    private final String name = "kvmessenger-target-" + ProcessHandle.current().pid();
    private final int listenFd = SOCKETS.listenAbstract(name);
    private final int gift = Descriptors.gift();
    private boolean sameUser = true;
    private int peersDeath = -1;
    private final ShmDomain domain =
            new ShmDomain(loop, TransferOptions.defaults(), port, figures, fd -> sameUser, fd -> peersDeath);

    @AfterEach
    void close() {
        domain.close();
        LIB_C.close(gift);
        LIB_C.close(listenFd);
        loop.close();
        arena.close();
    }

    /** A socket to the target that has answered its challenge with this key. */
    private int peer(byte[] key) {
        int fd = SOCKETS.connectAbstract(domain.location());
        turns();
        byte[] bytes = new byte[Hello.LENGTH_BYTES];
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment said = arena.allocate(Challenge.LENGTH_BYTES, 8);
            assertThat(LIB_C.read(fd, said, Challenge.LENGTH_BYTES)).isEqualTo(Challenge.LENGTH_BYTES);
            Hello.answer(Challenge.parse(said), domain.location(), Hello.CONTROL, 0, key)
                    .encode(MemorySegment.ofArray(bytes));
        }
        send(fd, bytes);
        turns();
        return fd;
    }

    /** The target's end of a writer's socket: challenges it and takes its hello. */
    private int acceptAndChallenge() {
        int fd = accept();
        byte[] challenge = new byte[Challenge.LENGTH_BYTES];
        Challenge.fresh(new Random(1)).encode(MemorySegment.ofArray(challenge));
        send(fd, challenge);
        loop.poll(0);
        loop.poll(0);
        assertThat(read(fd)).isEqualTo(Hello.LENGTH_BYTES);
        return fd;
    }

    private static byte[] record(int type, long... words) {
        byte[] bytes = new byte[8 + words.length * Long.BYTES];
        MemorySegment record = MemorySegment.ofArray(bytes);
        record.set(ValueLayout.JAVA_INT_UNALIGNED, 0, type);
        record.set(ValueLayout.JAVA_INT_UNALIGNED, 4, words.length * Long.BYTES);
        for (int i = 0; i < words.length; i++) {
            record.set(ValueLayout.JAVA_LONG_UNALIGNED, 8 + i * (long) Long.BYTES, words[i]);
        }
        return bytes;
    }

    private static void send(int fd, byte[] bytes) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment copy = arena.allocate(bytes.length);
            copy.copyFrom(MemorySegment.ofArray(bytes));
            assertThat(LIB_C.write(fd, copy, bytes.length)).isEqualTo(bytes.length);
        }
    }

    private static long read(int fd) {
        try (Arena arena = Arena.ofConfined()) {
            return LIB_C.read(fd, arena.allocate(4096), 4096);
        }
    }

    private void turns() {
        for (int i = 0; i < 4; i++) {
            loop.poll(0);
            domain.poll(NOW_NS);
        }
    }

    /** The writer's end, as far as the accept: the target's end of the socket is returned. */
    private OutboundLink dial() {
        return domain.connect(
                name,
                KEY,
                new MessageQueue(1),
                new LinkEvents() {
                    @Override
                    public void onReady() {}

                    @Override
                    public void onLost(TransferFault fault, String detail) {
                        lost.add(fault + " " + detail);
                    }

                    @Override
                    public void onPathOpened(Endpoint path) {
                        opened.add(path);
                    }

                    @Override
                    public void onPathLost(Endpoint path) {
                        throw new AssertionError("a mapping is lost with its link");
                    }

                    @Override
                    public void onSent(long postId) {
                        sent.add(postId);
                    }
                },
                NOW_NS);
    }

    private int accept() {
        return LIB_C.accept4(
                listenFd, MemorySegment.NULL, MemorySegment.NULL, SocketApi.SOCK_NONBLOCK | SocketApi.SOCK_CLOEXEC);
    }

    @Test
    void shouldCloseAnotherUsersSocketBeforeAByteIsRead() {
        sameUser = false;
        int stranger = SOCKETS.connectAbstract(domain.location());
        send(stranger, new byte[Hello.LENGTH_BYTES]);
        turns();
        assertThat(figures.of(TransferCounter.PATHS_REJECTED)).isEqualTo(1);
        assertThat(admission.link()).isNull();
        // The kernel says so when what was sent had not been read.
        assertThat(read(stranger)).isEqualTo(-Errno.ECONNRESET);
        LIB_C.close(stranger);
    }

    @Test
    void shouldNotSayItsKeyToAnotherUsersSocket() {
        sameUser = false;
        OutboundLink link = dial();
        link.doWork(NOW_NS);
        assertThat(lost).hasSize(1);
        assertThat(lost.getFirst()).startsWith("UNREACHABLE").contains("belongs to another user");
        int fd = accept();
        assertThat(read(fd)).as("bytes said before it hung up").isZero();
        LIB_C.close(fd);
    }

    @Test
    void shouldTakeNoDescriptorFromThoseTurnedAway() throws IOException {
        int stranger = peer(WRONG_KEY);
        assertThat(figures.of(TransferCounter.PATHS_REJECTED)).isEqualTo(1);
        Descriptors.send(stranger, record(ControlStream.MESSAGE), gift, gift);
        turns();
        assertThat(Descriptors.gifts()).isEqualTo(1);
        assertThat(Descriptors.send(stranger, record(ControlStream.MESSAGE), gift))
                .as("it was hung up on")
                .isNegative();
        LIB_C.close(stranger);
    }

    @Test
    void shouldTakeNoDescriptorFromAnAdmittedPeer() throws IOException {
        int peer = peer(KEY);
        assertThat(admission.link()).isNotNull();
        Descriptors.send(peer, record(ControlStream.READY), gift, gift);
        turns();
        assertThat(Descriptors.gifts()).isEqualTo(1);
        assertThat(port.closed)
                .as("it may still write: only its hang-up ends the admission")
                .isEmpty();
        LIB_C.close(peer);
        turns();
        assertThat(port.closed).hasSize(1);
    }

    @Test
    void shouldHangUpOnATargetThatSendsRegionsNobodyAskedFor() throws IOException {
        OutboundLink link = dial();
        int fd = acceptAndChallenge();
        int ring = MappedFile.createFile(LIB_C, "ring", ImmRing.LENGTH_BYTES);
        Descriptors.send(fd, record(ControlStream.ACCEPTED), ring, gift);
        LIB_C.close(ring);
        loop.poll(0);
        assertThat(figures.of(TransferCounter.PATHS_OPENED)).isEqualTo(1);
        Descriptors.send(fd, record(ControlStream.REGION, 3, 4096), gift);
        loop.poll(0);
        assertThat(lost).containsExactly("PROTOCOL the peer sent a region that was not asked for");
        assertThat(Descriptors.gifts()).isEqualTo(1);
        link.close();
        LIB_C.close(fd);
    }

    @Test
    void shouldKeepNothingOfATargetThatSendsTooLittle() throws IOException {
        OutboundLink link = dial();
        int fd = acceptAndChallenge();
        Descriptors.send(fd, record(ControlStream.ACCEPTED), gift);
        loop.poll(0);
        assertThat(lost).hasSize(1);
        assertThat(Descriptors.gifts()).isEqualTo(1);
        link.close();
        LIB_C.close(fd);
    }

    /** A child that the writer forked holds a copy of its socket, and lives on. */
    @Test
    void shouldTakeTheEndOfTheProcessForProofAlthoughItsSocketLivesOn() throws IOException, InterruptedException {
        Process process = new ProcessBuilder("sleep", "600").start();
        peersDeath = LIB_C.pidfd_open((int) process.pid());
        assertThat(peersDeath).isNotNegative();
        int peer = peer(KEY);
        send(peer, record(ControlStream.READY));
        turns();
        assertThat(figures.of(TransferCounter.PATHS_OPENED)).isEqualTo(1);
        assertThat(port.closed).isEmpty();
        process.destroyForcibly().waitFor();
        turns();
        assertThat(port.closed).containsExactly("the peer's process has ended");
        assertThat(LIB_C.pidfd_open(Integer.MAX_VALUE))
                .as("a process that does not exist")
                .isNegative();
        LIB_C.close(peer);
    }

    /** In the words of proc(5), the mapping is not copied at a fork. */
    @Test
    void shouldKeepMappingsFromChildren() throws IOException {
        int fd = MappedFile.createFile(LIB_C, "kvm-no-child", ImmRing.LENGTH_BYTES);
        MappedFile file = MappedFile.map(LIB_C, fd, ImmRing.LENGTH_BYTES);
        List<String> lines = Files.readAllLines(Path.of("/proc/self/smaps"));
        int at = 0;
        while (!lines.get(at).contains("kvm-no-child")) {
            at++;
        }
        while (!lines.get(at).startsWith("VmFlags:")) {
            at++;
        }
        assertThat(lines.get(at).split(" ", -1)).contains("dc");
        file.close();
        LIB_C.close(fd);
    }

    /** A writer that a target has accepted, and what it got; the ring is the target's, as the target sees it. */
    private final class Accepted implements AutoCloseable {
        final OutboundLink link = dial();
        final int fd = acceptAndChallenge();
        final int ringFd = MappedFile.createFile(LIB_C, "ring", ImmRing.LENGTH_BYTES);
        final int wakeFd = LIB_C.eventfd(0, MemoryApi.EFD_CLOEXEC | MemoryApi.EFD_NONBLOCK);
        final MappedFile ringFile = MappedFile.map(LIB_C, ringFd, ImmRing.LENGTH_BYTES);
        final ImmRing ring = new ImmRing(ringFile.memory());

        Accepted() {
            Descriptors.send(fd, record(ControlStream.ACCEPTED), ringFd, wakeFd);
            loop.poll(0);
        }

        /** Returns the units taken. */
        int post(long postId) {
            WriteBatch batch = new WriteBatch();
            batch.set(0, new TransferRequest.ImmOnly(() -> Imm.of(1, 0), 1), 0, 1);
            return opened.getFirst().post(batch, postId);
        }

        boolean wasWoken() {
            return read(wakeFd) == Long.BYTES;
        }

        @Override
        public void close() {
            link.close();
            ringFile.close();
            LIB_C.close(wakeFd);
            LIB_C.close(ringFd);
            LIB_C.close(fd);
        }
    }

    @Test
    void shouldWakeATargetThatSleepsOnceAndNoOther() {
        try (Accepted writer = new Accepted()) {
            assertThat(writer.post(1)).isEqualTo(1);
            assertThat(sent).as("nothing is told from within a post").isEmpty();
            assertThat(writer.link.doWork(NOW_NS)).isEqualTo(1);
            assertThat(sent).containsExactly(1L);
            assertThat(writer.wasWoken()).as("the target was awake").isFalse();
            writer.ring.park();
            writer.post(2);
            writer.link.doWork(NOW_NS);
            assertThat(writer.wasWoken()).isTrue();
            writer.post(3);
            writer.link.doWork(NOW_NS);
            assertThat(writer.wasWoken()).as("it is on its way").isFalse();
        }
    }

    /** Nothing tells when the target has taken from a full ring. */
    @Test
    void shouldAskToBeTurnedSoonWhileTheRingIsFull() {
        try (Accepted writer = new Accepted()) {
            int pushed = 0;
            while (writer.post(pushed) > 0) {
                pushed++;
                assertThat(writer.link.doWork(NOW_NS)).isEqualTo(1);
            }
            assertThat(pushed).isEqualTo(ImmRing.CAPACITY);
            assertThat(writer.link.doWork(NOW_NS)).isEqualTo(OutboundLink.LOOK_SOON);
            assertThat(writer.ring.take()).isNotEqualTo(ImmRing.EMPTY);
            assertThat(writer.post(pushed)).isEqualTo(1);
        }
    }

    @Test
    void shouldMapNoFileThatMayShrink() {
        assertThat(LIB_C.ftruncate(gift, 4096)).isZero();
        assertThatThrownBy(() -> MappedFile.map(LIB_C, gift, 4096)).hasMessageContaining("F_SEAL_SHRINK");
    }
}
