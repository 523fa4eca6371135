package io.kvmessenger.transfer.link;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.socket.Challenge;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * An error of this engine at each step in which a peer is admitted: the peer is sent a sentence and hung up on, and those
 * before and after it are served.
 */
final class AdmissionErrorsTest extends SocketLinksBed {
    private static final String BUG = "a bug of the test's";

    private enum Thrown {
        REFUSAL,
        BUG_OF_CODE,
        ERROR;

        void happen() {
            switch (this) {
                case REFUSAL -> throw new IllegalStateException(BUG);
                case BUG_OF_CODE -> throw new IndexOutOfBoundsException(BUG);
                case ERROR -> throw new AssertionError(BUG);
            }
        }
    }

    private enum Step {
        /** The door looks for the worker that has the admission. */
        WORKER_LOOK_UP,
        /** That worker looks for the admission. */
        LOOK_UP_BY_ITS_WORKER,
        LOOK_UP_BY_THE_DOORS_WORKER,
        WATCH_OF_ITS_PROCESS
    }

    private record Case(Step step, Thrown thrown) {
        /** Of the peer that meets the error. */
        byte[] key() {
            return step == Step.WORKER_LOOK_UP || step == Step.LOOK_UP_BY_ITS_WORKER ? ITS_KEY : KEY;
        }
    }

    static Stream<Case> cases() {
        return Stream.of(Step.values())
                .flatMap(step -> Stream.of(Thrown.values()).map(thrown -> new Case(step, thrown)));
    }

    private final EventLoop itsLoop = new EventLoop(LIB_C, () -> nowNs);
    private final Figures itsFigures = new Figures();
    private final InboundAdmission itsAdmission = new InboundAdmission(new Admission(2, "writer", ITS_KEY));
    private final FakePort itsPort = new FakePort(itsAdmission, arena.allocate(4096), Imm.of(1, 0), 4096);
    private final SocketLinks itsLinks = links.beside(itsLoop);
    private final List<String> looked = new ArrayList<>();

    AdmissionErrorsTest() {
        assertThat(itsLinks.listenLocal(MAPPED, itsPort, itsFigures)).isEqualTo(here);
        itsLinks.use(domains);
    }

    @AfterEach
    void closeOther() {
        itsLinks.close();
        itsLoop.close();
    }

    @Override
    void work() {
        super.work();
        itsLoop.poll(0);
        itsLinks.poll(nowNs);
    }

    private Runnable throwing(Case given) {
        // The door's worker asks this worker too, before its own turn.
        int passed = given.step == Step.LOOK_UP_BY_ITS_WORKER ? 1 : 0;
        int[] calls = new int[1];
        return () -> {
            if (calls[0]++ == passed) {
                looked.add(given.step.name());
                given.thrown.happen();
            }
        };
    }

    @ParameterizedTest
    @MethodSource("cases")
    void shouldSayWhyAndServeTheOthers(Case given) {
        int before = peer(given.key() == KEY ? ITS_KEY : KEY);
        assertThat(isAdmitted(before)).isTrue();
        attach(before, 0, SENT);
        ready(before, 0);
        switch (given.step) {
            case WORKER_LOOK_UP, LOOK_UP_BY_ITS_WORKER -> itsPort.lookUps = throwing(given);
            case LOOK_UP_BY_THE_DOORS_WORKER -> port.lookUps = throwing(given);
            case WATCH_OF_ITS_PROCESS -> deathLookUps = throwing(given);
        }
        int harmed = peer(given.key());
        work();
        assertThat(looked).hasSize(1);
        assertThat(words(harmed)).contains(BUG);
        assertThat(figures.of(TransferCounter.PATHS_REJECTED) + itsFigures.of(TransferCounter.PATHS_REJECTED))
                .isEqualTo(1);
        nowNs += 2_000_000_000L;
        work();
        assertThat(read(harmed)).as("it is hung up on").isZero();
        int after = peer(given.key());
        assertThat(isAdmitted(after)).isTrue();
        assertThat(port.closed).isEmpty();
        assertThat(itsPort.closed).isEmpty();
        for (int fd : new int[] {before, harmed, after}) {
            LIB_C.close(fd);
        }
        work();
    }

    /** The acceptance: a record without a payload. */
    private boolean isAdmitted(int fd) {
        return read(fd) == 8;
    }

    private String words(int fd) {
        MemorySegment given = arena.allocate(4096);
        long lengthBytes = LIB_C.read(fd, given, given.byteSize());
        assertThat(lengthBytes)
                .as("bytes sent after the challenge of " + Challenge.LENGTH_BYTES)
                .isPositive();
        return new String(given.asSlice(0, lengthBytes).toArray(JAVA_BYTE), StandardCharsets.UTF_8);
    }
}
