package io.kvmessenger.transfer.link;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.socket.Challenge;
import io.kvmessenger.transfer.socket.ControlRecord;
import io.kvmessenger.transfer.socket.Descriptors;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.SocketCalls;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.FakeDomain;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;

/** One end of links, sockets for the other, and domains whose paths need a proof of their end, or do not. One thread. */
abstract class SocketLinksBed {
    static final LibC LIB_C = new FfmLibC();
    static final SocketCalls SOCKETS = new SocketCalls(LIB_C);
    static final byte[] KEY = new byte[Admission.KEY_LENGTH_BYTES];
    static final byte[] WRONG_KEY = new byte[] {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    static final byte[] ITS_KEY = new byte[] {2, 2, 2, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    static final byte[] NONCE = new byte[Hello.NONCE_LENGTH_BYTES];
    static final long CONNECT_LIMIT_NS = 1_000;
    static final long IDLE_LIMIT_NS = 1_000_000_000_000L;
    static final String MAPPED = "mapped";
    static final String SENT = "sent";

    final Arena arena = Arena.ofConfined();
    long nowNs;
    final EventLoop loop = new EventLoop(LIB_C, () -> nowNs);
    final Figures figures = new Figures();
    final InboundAdmission admission = new InboundAdmission(new Admission(1, "writer", KEY));
    final FakePort port = new FakePort(admission, arena.allocate(4096), Imm.of(1, 0), 4096);
    final int gift = Descriptors.gift();
    boolean sameUser = true;
    int peersDeath = -1;
    /** Called when a peer's end is to be watched. */
    Runnable deathLookUps = () -> {};

    boolean watched;
    final SocketLinks links =
            new SocketLinks(loop, CONNECT_LIMIT_NS, IDLE_LIMIT_NS, fd -> sameUser, fd -> deathOfPeer());
    final String here = links.listenLocal(MAPPED, port, figures);
    final List<FakeInboundPaths> paths = new ArrayList<>();
    final List<String> events = new ArrayList<>();

    final List<Domain> domains = List.of(new Admitting(MAPPED, false), new Admitting(SENT, true));

    SocketLinksBed() {
        links.use(domains);
    }

    @AfterEach
    void close() {
        links.close();
        LIB_C.close(gift);
        loop.close();
        arena.close();
    }

    private int deathOfPeer() {
        deathLookUps.run();
        return peersDeath;
    }

    private final class Admitting extends FakeDomain {
        private final boolean endsItself;

        Admitting(String name, boolean endsItself) {
            super(name, 0);
            this.endsItself = endsItself;
        }

        @Override
        public InboundPaths admit(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs) {
            watched = channel.watchesProcess();
            FakeInboundPaths admitted = new FakeInboundPaths(channel, endsItself);
            paths.add(admitted);
            return admitted;
        }
    }

    void work() {
        for (int i = 0; i < 4; i++) {
            loop.poll(0);
            links.poll(nowNs);
        }
    }

    /** A socket to the engine that has answered its challenge with this key. */
    int peer(byte[] key) {
        int fd = SOCKETS.connectAbstract(here);
        work();
        MemorySegment given = arena.allocate(Challenge.LENGTH_BYTES, 8);
        assertThat(LIB_C.read(fd, given, Challenge.LENGTH_BYTES)).isEqualTo(Challenge.LENGTH_BYTES);
        MemorySegment hello = arena.allocate(Hello.LENGTH_BYTES, 8);
        Hello.answer(Challenge.parse(given), here, Hello.CONTROL, 0, key, NONCE).encode(hello);
        assertThat(LIB_C.write(fd, hello, Hello.LENGTH_BYTES)).isEqualTo(Hello.LENGTH_BYTES);
        work();
        return fd;
    }

    static byte[] record(int type, MemorySegment payload) {
        MemorySegment record = MemorySegment.ofArray(new byte[8 + (int) payload.byteSize()]);
        record.set(java.lang.foreign.ValueLayout.JAVA_INT_UNALIGNED, 0, type);
        record.set(java.lang.foreign.ValueLayout.JAVA_INT_UNALIGNED, 4, (int) payload.byteSize());
        MemorySegment.copy(payload, 0, record, 8, payload.byteSize());
        return record.toArray(java.lang.foreign.ValueLayout.JAVA_BYTE);
    }

    void say(int fd, int kind, int number, MemorySegment payload) {
        byte[] bytes = record(ControlRecord.type(kind, number), payload);
        MemorySegment copy = arena.allocate(bytes.length);
        copy.copyFrom(MemorySegment.ofArray(bytes));
        assertThat(LIB_C.write(fd, copy, bytes.length)).isEqualTo(bytes.length);
        work();
    }

    void attach(int fd, int number, String transport) {
        say(fd, ControlRecord.ATTACH, number, new Attach(transport, MemorySegment.NULL).encode());
    }

    void ready(int fd, int number) {
        say(fd, FakeInboundPaths.READY, number, MemorySegment.NULL);
    }

    long read(int fd) {
        return LIB_C.read(fd, arena.allocate(4096), 4096);
    }
}
