package io.kvmessenger.transfer.socket;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.spi.Figures;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** More sockets than a listener keeps, of friends and of silent sockets, in time that the test moves. */
final class ListenerTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    private static final byte[] KEY = new byte[16];

    private final Arena arena = Arena.ofConfined();
    private long nowNs;
    private final EventLoop loop = new EventLoop(LIB_C, () -> nowNs);
    private final Figures figures = new Figures();
    private final String name =
            "kvmessenger-listener-" + ProcessHandle.current().pid();
    private final List<Hello> hellos = new ArrayList<>();
    private final List<Integer> fds = new ArrayList<>();
    private final Listener listener = new Listener(
            loop, SOCKETS.listenAbstract(name), figures, fd -> true, new Random(1), (fd, hello, asked, atNs) -> {
                hellos.add(hello);
                LIB_C.close(fd);
            });

    @AfterEach
    void close() {
        listener.close();
        fds.forEach(LIB_C::close);
        loop.close();
        arena.close();
    }

    private void work() {
        int called = 1;
        while (called > 0) {
            called = loop.poll(0) + listener.doWork(nowNs);
        }
    }

    private int dial() {
        int fd = SOCKETS.connectAbstract(name);
        assertThat(fd).isNotNegative();
        fds.add(fd);
        return fd;
    }

    private boolean isAsked(int fd) {
        return LIB_C.read(fd, arena.allocate(Challenge.LENGTH_BYTES, 8), Challenge.LENGTH_BYTES)
                == Challenge.LENGTH_BYTES;
    }

    private void answer(int fd) {
        MemorySegment challenge = arena.allocate(Challenge.LENGTH_BYTES, 8);
        assertThat(LIB_C.read(fd, challenge, Challenge.LENGTH_BYTES)).isEqualTo(Challenge.LENGTH_BYTES);
        MemorySegment hello = arena.allocate(Hello.LENGTH_BYTES, 8);
        Hello given = Hello.answer(
                Challenge.parse(challenge), name, Hello.CONTROL, 0, KEY, new byte[Hello.NONCE_LENGTH_BYTES]);
        given.encode(hello);
        assertThat(LIB_C.write(fd, hello, given.lengthBytes())).isEqualTo(given.lengthBytes());
    }

    private long rejected() {
        return figures.of(TransferCounter.PATHS_REJECTED);
    }

    @Test
    void shouldThrowOutNoneOfThoseThatArriveTogether() {
        int count = 5 * Listener.PENDING_MAX;
        List<Integer> friends = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            friends.add(dial());
        }
        work();
        // Each place that a hello frees goes to the next that waits.
        for (int friend : friends) {
            answer(friend);
            work();
        }
        assertThat(hellos).hasSize(count);
        assertThat(rejected()).isZero();
    }

    @Test
    void shouldLetTheSilentHoldTheirPlacesForAMomentOnly() {
        for (int i = 0; i < Listener.PENDING_MAX; i++) {
            dial();
        }
        work();
        int friend = dial();
        work();
        nowNs = Listener.CROWDED_LIMIT_NS;
        work();
        assertThat(isAsked(friend)).isFalse();
        assertThat(rejected()).isZero();
        nowNs++;
        work();
        assertThat(rejected()).isEqualTo(1);
        answer(friend);
        work();
        assertThat(hellos).hasSize(1);
    }

    /** The worker was busy elsewhere for longer than every limit: what has arrived meanwhile is read first. */
    @Test
    void shouldReadTheHelloOfWhomItWouldThrowOut() {
        List<Integer> friends = new ArrayList<>();
        for (int i = 0; i < Listener.PENDING_MAX; i++) {
            friends.add(dial());
        }
        work();
        friends.forEach(this::answer);
        dial();
        nowNs = Listener.HELLO_LIMIT_NS + 1;
        listener.doWork(nowNs);
        work();
        assertThat(hellos).hasSize(Listener.PENDING_MAX);
        assertThat(rejected()).isZero();
    }

    @Test
    void shouldTakeTheHelloOfAnEarlierVersionAndOneThatComesInPieces() {
        for (int newest : List.of(4, Hello.VERSION)) {
            int fd = dial();
            work();
            MemorySegment challenge = arena.allocate(Challenge.LENGTH_BYTES, 8);
            LIB_C.read(fd, challenge, Challenge.LENGTH_BYTES);
            Challenge asked =
                    new Challenge(4, newest, Challenge.parse(challenge).nonce());
            Hello given = Hello.answer(asked, name, Hello.CONTROL, 0, KEY, new byte[Hello.NONCE_LENGTH_BYTES]);
            MemorySegment bytes = arena.allocate(Hello.LENGTH_BYTES, 8);
            given.encode(bytes);
            for (int i = 0; i < given.lengthBytes(); i++) {
                assertThat(hellos.size()).isLessThan(newest - 3);
                LIB_C.write(fd, bytes.asSlice(i), 1);
                work();
            }
            assertThat(hellos.getLast().version()).isEqualTo(newest);
        }
    }
}
