package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.socket.Challenge;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.Listener;
import io.kvmessenger.transfer.spi.KeyProof;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What every socket-based transport must survive, and what it must release when it is closed. */
@Timeout(900)
public abstract class HostilePeerContractTest {
    private static final byte[] NONCE = new byte[Hello.NONCE_LENGTH_BYTES];
    private static final LibC LIB_C = new FfmLibC();
    private static final long MEMORY_BYTES = 1 << 20;
    private static final long IDLE_NS = 2_000_000_000L;
    private static final double IDLE_SHARE_MAX = 0.01;
    /** So long that a machine with much other work to do does not reach it. */
    private static final long BACK_LIMIT_NS = 600_000_000_000L;

    protected DrivenEngine target;
    private final List<Integer> sockets = new ArrayList<>();

    protected abstract String transport();

    /** A socket connected to the engine's listener. */
    protected abstract int connectSocket(String location);

    protected TransferOptions options() {
        return TransferOptions.defaults().withTransports(transport());
    }

    @BeforeEach
    void open() {
        target = new DrivenEngine(options(), "target", MEMORY_BYTES);
    }

    @AfterEach
    void close() {
        sockets.forEach(LIB_C::close);
        target.close();
    }

    protected int socket() {
        int fd = connectSocket(location());
        assertThat(fd).isNotNegative();
        sockets.add(fd);
        return fd;
    }

    protected static void send(int fd, byte[] bytes) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment copy = arena.allocate(bytes.length);
            copy.copyFrom(MemorySegment.ofArray(bytes));
            assertThat(LIB_C.write(fd, copy, bytes.length)).isEqualTo(bytes.length);
        }
    }

    /** The answer of a writer with this key to the challenge read from the socket. */
    protected byte[] hello(int fd, int role, byte[] key) {
        return encoded(Hello.answer(challenge(fd), location(), role, 1, key, NONCE));
    }

    private Challenge challenge(int fd) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment bytes = arena.allocate(Challenge.LENGTH_BYTES, 8);
            target.await("a challenge", () -> LIB_C.read(fd, bytes, Challenge.LENGTH_BYTES) == Challenge.LENGTH_BYTES);
            return Challenge.parse(bytes);
        }
    }

    private static byte[] encoded(Hello hello) {
        byte[] bytes = new byte[Hello.LENGTH_BYTES];
        hello.encode(MemorySegment.ofArray(bytes));
        return bytes;
    }

    private String location() {
        return target.engine().address().transports().getFirst().location();
    }

    protected void awaitRejected(long count) {
        target.await(
                count + " rejected paths",
                () -> target.engine().counters().of(TransferCounter.PATHS_REJECTED) >= count);
    }

    protected void shouldStillAdmitAPeer() {
        try (DrivenEngine writer = new DrivenEngine(options(), "writer", MEMORY_BYTES)) {
            Admission admission = target.engine().admit("writer");
            Peer peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
            writer.await("the peer", () -> writer.ready.contains(peer));
        }
    }

    @Test
    void shouldCloseAndCountGarbage() {
        long seed = Long.getLong("kvmessenger.test.seed", System.nanoTime());
        System.out.println("seed " + seed + ", the same again by -Dkvmessenger.test.seed=" + seed);
        Random random = new Random(seed);
        for (int i = 0; i < 20; i++) {
            byte[] garbage = new byte[Hello.LENGTH_BYTES + random.nextInt(1000)];
            random.nextBytes(garbage);
            send(socket(), garbage);
        }
        awaitRejected(20);
        shouldStillAdmitAPeer();
        assertThat(target.closedAdmissions).hasSizeLessThanOrEqualTo(1);
    }

    @Test
    void shouldRejectAnotherVersion() {
        Admission admission = target.engine().admit("writer");
        int fd = socket();
        Hello right = Hello.answer(challenge(fd), location(), Hello.CONTROL, 1, admission.key(), NONCE);
        send(fd, encoded(new Hello(Hello.VERSION + 1, Hello.CONTROL, 1, right.keyName(), right.proof(), NONCE)));
        awaitRejected(1);
        assertThat(target.closedAdmissions).isEmpty();
    }

    @Test
    void shouldNotLetHalfSentHellosHoldTheDoor() {
        for (int i = 0; i < Listener.PENDING_MAX + 8; i++) {
            send(socket(), new byte[] {'K', 'V', 'M'});
        }
        awaitRejected(8);
        shouldStillAdmitAPeer();
        // The others are closed at their time limit.
        awaitRejected(Listener.PENDING_MAX + 8);
    }

    @Test
    void shouldRejectADataPathOutOfNowhere() {
        Admission admission = target.engine().admit("writer");
        int fd = socket();
        send(fd, hello(fd, 3, admission.key()));
        awaitRejected(1);
        assertThat(target.closedAdmissions).doesNotContainKey(admission.id());
        shouldStillAdmitAPeer();
    }

    /** An eavesdropper that is faster than the writer, and one that comes later. */
    @Test
    void shouldTakeNoHelloThatWasRecordedOnAnotherSocket() {
        Admission admission = target.engine().admit("writer");
        int honest = socket();
        byte[] recorded = hello(honest, Hello.CONTROL, admission.key());
        replay(recorded);
        awaitRejected(1);
        send(honest, recorded);
        target.await("the acceptance", () -> readable(honest));
        replay(recorded);
        awaitRejected(2);
        assertThat(target.closedAdmissions).as("the honest one lives on").isEmpty();
    }

    private void replay(byte[] hello) {
        int fd = socket();
        challenge(fd);
        send(fd, hello);
    }

    /** Each of two admitted writers opens its own paths, and cannot act in the other's name. */
    @Test
    void shouldKeepTwoAdmittedWritersApart() {
        Admission first = target.engine().admit("first");
        Admission second = target.engine().admit("second");
        int thief = socket();
        Hello own = Hello.answer(challenge(thief), location(), Hello.CONTROL, 1, second.key(), NONCE);
        Hello disguised = new Hello(Hello.VERSION, Hello.CONTROL, 1, KeyProof.nameOf(first.key()), own.proof(), NONCE);
        send(thief, encoded(disguised));
        awaitRejected(1);
        for (Admission admission : List.of(first, second)) {
            int fd = socket();
            send(fd, hello(fd, Hello.CONTROL, admission.key()));
            target.await(admission.peerName() + " is accepted", () -> readable(fd));
        }
        assertThat(target.engine().counters().of(TransferCounter.PATHS_REJECTED))
                .isEqualTo(1);
        assertThat(target.closedAdmissions).isEmpty();
    }

    private static boolean readable(int fd) {
        try (Arena arena = Arena.ofConfined()) {
            return LIB_C.read(fd, arena.allocate(1), 1) == 1;
        }
    }

    @Test
    void shouldGiveEverythingBackWhenClosed() throws IOException {
        shouldStillAdmitAPeer();
        target.close();
        List<String> before = held();
        for (int i = 0; i < 3; i++) {
            open();
            shouldStillAdmitAPeer();
            target.close();
        }
        awaitWithin(before);
        open();
    }

    /** What ended before may still be closing, and threads end a moment after they are waited for. */
    private static void awaitWithin(List<String> before) throws IOException {
        long limitNs = System.nanoTime() + BACK_LIMIT_NS;
        List<String> more;
        do {
            more = new ArrayList<>(held());
            before.forEach(more::remove);
        } while (!more.isEmpty() && System.nanoTime() - limitNs < 0);
        assertThat(more).as("held beside what was before").isEmpty();
    }

    /** Descriptors by kind, worker threads, and mappings of this project. */
    private static List<String> held() throws IOException {
        List<String> held = new ArrayList<>();
        try (Stream<Path> fds = Files.list(Path.of("/proc/self/fd"))) {
            fds.map(HostilePeerContractTest::targetOf)
                    .filter(to -> to.startsWith("socket") || to.contains("memfd") || to.contains("event"))
                    .map(to -> to.replaceAll("\\d+", "N"))
                    .forEach(held::add);
        }
        Thread.getAllStackTraces().keySet().stream()
                .map(Thread::getName)
                .filter(name -> name.startsWith("kvm-"))
                .forEach(held::add);
        Files.readAllLines(Path.of("/proc/self/maps")).stream()
                .filter(line -> line.contains("memfd"))
                .map(line -> line.substring(line.indexOf('/')))
                .forEach(held::add);
        return held.stream().sorted().toList();
    }

    private static String targetOf(Path fd) {
        try {
            return Files.readSymbolicLink(fd).toString();
        } catch (IOException e) {
            // The descriptor of the listing itself is gone by now.
            return "";
        }
    }

    @Test
    void shouldCostNextToNothingWhileIdle() throws InterruptedException {
        shouldStillAdmitAPeer();
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        long worker = Thread.getAllStackTraces().keySet().stream()
                .filter(thread -> thread.getName().startsWith("kvm-transfer"))
                .mapToLong(Thread::threadId)
                .findFirst()
                .orElseThrow();
        long beganNs = System.nanoTime();
        long cpuBeforeNs = threads.getThreadCpuTime(worker);
        while (System.nanoTime() - beganNs < IDLE_NS) {
            Thread.sleep(100);
        }
        double share = (double) (threads.getThreadCpuTime(worker) - cpuBeforeNs) / (System.nanoTime() - beganNs);
        System.out.printf("an idle worker takes %.3f %% of a core%n", share * 100);
        assertThat(share).isLessThan(IDLE_SHARE_MAX);
    }
}
