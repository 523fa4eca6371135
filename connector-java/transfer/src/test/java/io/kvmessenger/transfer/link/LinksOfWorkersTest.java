package io.kvmessenger.transfer.link;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.socket.Challenge;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import java.lang.foreign.MemorySegment;
import org.junit.jupiter.api.Test;

/** A peer that reaches the worker that listens, and belongs to another worker of the engine. */
final class LinksOfWorkersTest extends SocketLinksBed {
    /** Another worker of the engine, whose admission the key is. */
    private final class OtherWorker implements AutoCloseable {
        private final EventLoop itsLoop = new EventLoop(LIB_C, () -> nowNs);
        private final Figures itsFigures = new Figures();
        private final InboundAdmission itsAdmission = new InboundAdmission(new Admission(2, "writer", ITS_KEY));
        private final FakePort itsPort = new FakePort(itsAdmission, arena.allocate(4096), Imm.of(1, 0), 4096);
        private final SocketLinks itsLinks = links.beside(itsLoop);

        OtherWorker() {
            assertThat(itsLinks.listenLocal(MAPPED, itsPort, itsFigures)).isEqualTo(here);
        }

        void doWork() {
            itsLoop.poll(0);
            itsLinks.poll(nowNs);
        }

        @Override
        public void close() {
            itsLinks.close();
            itsLoop.close();
        }
    }

    @Test
    void shouldHandAnotherWorkersPeerToThatWorker() {
        try (OtherWorker other = new OtherWorker()) {
            int fd = peer(ITS_KEY);
            assertThat(other.itsAdmission.link()).as("only its worker opens it").isNull();
            other.doWork();
            assertThat(other.itsAdmission.link()).isNotNull();
            assertThat(admission.link()).isNull();
            LIB_C.close(fd);
        }
    }

    /** Between the look of the worker that listens and the duty cycle of the other the admission has ended: nothing may follow. */
    @Test
    void shouldTurnAwayAPeerWhoseAdmissionEndedWhileItWasHandedOver() {
        try (OtherWorker other = new OtherWorker()) {
            int fd = peer(ITS_KEY);
            other.itsPort.live = false;
            other.doWork();
            assertThat(other.itsAdmission.link()).isNull();
            assertThat(other.itsFigures.of(TransferCounter.PATHS_REJECTED)).isEqualTo(1);
            LIB_C.close(fd);
        }
    }

    @Test
    void shouldTurnAwayAPeerOfAnotherWorkersThatHasNotTheKey() {
        try (OtherWorker other = new OtherWorker()) {
            int fd = SOCKETS.connectAbstract(here);
            work();
            MemorySegment given = arena.allocate(Challenge.LENGTH_BYTES, 8);
            assertThat(LIB_C.read(fd, given, Challenge.LENGTH_BYTES)).isEqualTo(Challenge.LENGTH_BYTES);
            Hello right = Hello.answer(Challenge.parse(given), here, Hello.CONTROL, 0, ITS_KEY, NONCE);
            MemorySegment hello = arena.allocate(Hello.LENGTH_BYTES, 8);
            new Hello(
                            right.version(),
                            right.role(),
                            right.count(),
                            right.keyName(),
                            new byte[right.proof().length],
                            NONCE)
                    .encode(hello);
            assertThat(LIB_C.write(fd, hello, Hello.LENGTH_BYTES)).isEqualTo(Hello.LENGTH_BYTES);
            work();
            other.doWork();
            assertThat(other.itsAdmission.link()).isNull();
            assertThat(other.itsFigures.of(TransferCounter.PATHS_REJECTED)).isEqualTo(1);
            LIB_C.close(fd);
        }
    }

    @Test
    void shouldHangUpOnAPeerWhoseWorkerHasEnded() {
        try (OtherWorker other = new OtherWorker()) {
            int waiting = peer(ITS_KEY);
            other.itsLinks.close();
            assertThat(read(waiting)).isZero();
            int late = peer(ITS_KEY);
            assertThat(read(late)).isZero();
            LIB_C.close(waiting);
            LIB_C.close(late);
        }
    }
}
